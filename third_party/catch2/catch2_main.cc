// The implementation of Catch2 and its main(), which takes most of a minute to compile: hence once, here.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
