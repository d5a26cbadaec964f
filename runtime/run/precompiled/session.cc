// What handles a run includes, to be compiled once: see third_party/precompiled/precompiled.bzl.
#include "runtime/run/session.h"

#include "runtime/exec/engine.h"
#include "runtime/plan/precompiled/headers.h"
