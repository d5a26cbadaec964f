#include <catch2/catch.hpp>

#include "third_party/precompiled/headers.h"
