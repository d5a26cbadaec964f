#include "runtime/plan/precompiled/headers.h"
