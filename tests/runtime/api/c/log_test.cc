// A program's log, which may call back or throw.
#include <catch2/catch.hpp>
#include <stdexcept>
#include <thread>

#include "tests/runtime/api/c/linked.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

struct Listener {
  std::thread::id thread = std::this_thread::get_id();
  mr_run* run = nullptr;
  int heard = 0, elsewhere = 0;
  std::vector<int32_t> codes;  // of calls from within
  bool throws = false;

  static void Hear(void* user, int32_t, const char* text) {
    auto& listener = *static_cast<Listener*>(user);
    ++listener.heard;
    if (std::this_thread::get_id() != listener.thread) ++listener.elsewhere;
    if (text == nullptr || *text == 0) ++listener.elsewhere;
    if (listener.run != nullptr) {
      listener.codes.push_back(Take(mr_init(listener.run)).code);
      listener.codes.push_back(Take(mr_run_destroy(listener.run)).code);
    }
    if (listener.throws) throw std::runtime_error("a listener in C++ that throws");
  }
};

TEST_CASE("the log speaks on the caller's thread, and may neither enter nor throw", "[api][c]") {
  const TempDir folder;
  Listener listener;
  const std::string config = TinyConfig(R"("checkpoint": {"every": 7})");
  mr_run_options options = OptionsOf(config);
  options.user = &listener;
  options.log = Listener::Hear;
  const Linked run(options);
  REQUIRE(listener.heard == 1);  // that checkpoint.every is the caller's
  REQUIRE_CODE(mr_init(run), MR_OK);
  listener.run = run;
  listener.throws = true;
  REQUIRE_CODE(mr_save(run, folder.path().c_str()), MR_OK);
  REQUIRE(listener.heard == 2);
  REQUIRE(listener.codes == std::vector<int32_t>{MR_BUSY, MR_BUSY});
  REQUIRE(listener.elsewhere == 0);
  listener.run = nullptr;
  REQUIRE(run.Step(0).first.code == MR_OK);
}

}  // namespace
}  // namespace millrace::test
