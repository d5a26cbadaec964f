#include "third_party/precompiled/headers.h"
