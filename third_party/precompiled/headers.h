// What nearly every source of the project includes of the standard library, fmt and JSON, to be
// compiled once: see precompiled.bzl. Headers of our own do not belong here, nor any that defines
// objects (<iostream>). A source includes what it uses all the same: tests/build/includes_test.py.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>
