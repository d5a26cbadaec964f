// That mistakes with memory stop the program: this file is compiled as the rest of it is
// (.bazelrc). The linker's part is in hardening_test.sh.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace {

// Whether `mistake` ended its process by abort(), as all of these checks do.
bool Aborts(const std::function<void()>& mistake) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // Catch2 has a handler of its own
    ::close(STDERR_FILENO);
    mistake();
    ::_exit(0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
         WTERMSIG(status) == SIGABRT;
}

// The compiler must not know them.
volatile size_t nine = 9, eight = 8;
char* volatile target;

[[gnu::noinline]] void Smash(volatile int* array, size_t end) {
  for (size_t i = 0; i < end; ++i) array[i] = 7;
}

// An array that holds no characters: protected by -fstack-protector-strong alone.
[[gnu::noinline]] void WriteBeyondStackArray() {
  volatile int array[4] = {};
  Smash(array, nine * 4);
}

TEST_CASE("a container's end is checked") {
  const std::vector<int> values(eight);
  CHECK_FALSE(Aborts([&] { nine = static_cast<size_t>(values[eight - 1]); }));
  CHECK(Aborts([&] { nine = static_cast<size_t>(values[nine]); }));
}

TEST_CASE("a copy beyond an allocation of a size known at run time is checked") {
  const auto copy = [](size_t bytes) {
    char* const memory = static_cast<char*>(std::malloc(eight));
    std::memset(memory, 1, bytes);
    target = memory;
  };
  CHECK_FALSE(Aborts([&] { copy(eight); }));
  CHECK(Aborts([] {
    char* const memory = static_cast<char*>(std::malloc(eight));
    target = memory;
    std::memset(memory, 1, nine);
  }));
}

TEST_CASE("a write beyond an array on the stack is noticed") {
  CHECK(Aborts(WriteBeyondStackArray));
}

}  // namespace
