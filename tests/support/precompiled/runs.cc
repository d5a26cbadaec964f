// What tests of runs include, to be compiled once: see third_party/precompiled/precompiled.bzl.
#include <catch2/catch.hpp>

#include "models/model.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/run/session.h"
#include "third_party/precompiled/headers.h"
