// A run that stands still, and a program that is told so.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "tests/runtime/api/c/answers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

// A callback of the program's that does not return is what stands still here.
TEST_CASE("on_stall hears of a call that makes no progress, on a thread of its own", "[api][c]") {
  struct Program {
    std::promise<std::string> said;
    std::shared_future<std::string> verdict = said.get_future().share();
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> calls = 0;
    bool on_caller = false, was_told = false;

    static void OnStall(void* user, const char* verdict) {
      Program& self = *static_cast<Program*>(user);
      self.on_caller = std::this_thread::get_id() == self.caller;
      if (++self.calls == 1) self.said.set_value(verdict);
    }
    static mr_status* OnEvent(void* user, mr_event* event) {
      Program& self = *static_cast<Program*>(user);
      if (event->index == 1)
        self.was_told =
            self.verdict.wait_for(std::chrono::seconds(40)) == std::future_status::ready;
      return nullptr;
    }
  } program;
  const TempDir folder;
  const std::string config =
      TinyConfig(R"("execution": {"watchdog_s": 1}, "run": {"dir": ")" + folder.path() + R"("})");
  mr_run_options options = WithInference(config);
  options.user = &program;
  options.on_stall = Program::OnStall;
  const Linked run(options);
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  // What the program does between two calls is its own business.
  REQUIRE(program.verdict.wait_for(std::chrono::milliseconds(2500)) == std::future_status::timeout);

  const std::vector<int32_t> prompt = {1, 2};
  const mr_request request = RequestOf(prompt, 4, 0);
  const mr_request* const requests[] = {&request};
  mr_stream_options stream = Sized<mr_stream_options>();
  stream.user = &program;
  stream.on_event = Program::OnEvent;
  REQUIRE_CODE(mr_stream(run, requests, 1, &stream), MR_OK);
  REQUIRE(program.was_told);
  REQUIRE_FALSE(program.on_caller);
  REQUIRE_THAT(program.verdict.get(), Contains("\"generating"));
  // The run goes on: it is the program that would have ended it.
  REQUIRE(run.Step(0).first.code == MR_OK);
  REQUIRE(program.calls == 1);
}

}  // namespace
}  // namespace millrace::test
