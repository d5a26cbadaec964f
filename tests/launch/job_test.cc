// Jobs that are shell scripts: what becomes of their output, their end and what they leave.
#include "tools/launch/job.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <string>

#include "runtime/base/error.h"
#include "tools/launch/process_facts.h"

namespace millrace {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read = ends[0], write = ends[1];
  }
  ~Pipe() {
    ::close(read);
    ::close(write);
  }
  // All that lies in it.
  std::string Text() const {
    ::fcntl(read, F_SETFL, O_NONBLOCK);
    std::string text;
    char piece[4096];
    for (ssize_t count; (count = ::read(read, piece, sizeof piece)) > 0;)
      text.append(piece, static_cast<size_t>(count));
    return text;
  }
};

// A job whose streams are pipes.
struct Shell {
  Pipe out_pipe, err_pipe;
  std::string trouble;
  int troubles = 0;
  Output err{err_pipe.write};
  Output out{out_pipe.write, [this](const std::string& why) {
               trouble = why;
               ++troubles;
             }};

  JobSetup Setup(const std::string& script) {
    JobSetup setup;
    setup.command = {"sh", "-c", script};
    setup.out = &out;
    setup.err = &err;
    return setup;
  }
  JobEnd Run(const JobSetup& setup) {
    Job job(setup);
    StopSequence stop(std::nullopt);
    job.Run(stop);
    return job.end();
  }
  JobEnd Run(const std::string& script) { return Run(Setup(script)); }
};

const auto kNever = [] { return false; };

TEST_CASE("both streams arrive whole, and mpirun's words become facts", "[launch]") {
  Shell shell;
  JobSetup setup = shell.Setup(
      "echo out; printf 'a\\036millrace-rank 0123456789abcdef 0 1 41\\nb' >&2; "
      "printf -- --- >&2; exit 3");
  setup.rank_token = "0123456789abcdef";
  const JobEnd end = shell.Run(setup);
  CHECK(end.code == 3);
  CHECK_FALSE(end.leader_lost);
  CHECK(end.said.ranks.at(0) == 41);
  CHECK(shell.out.Drain(kNever));
  CHECK(shell.err.Drain(kNever));
  CHECK(shell.out_pipe.Text() == "out\n");
  CHECK(shell.err_pipe.Text() == "ab---");
}

TEST_CASE("what may become mpirun's words is shown after a moment, while the job runs",
          "[launch]") {
  Shell shell;
  Job job(shell.Setup("printf '51%% -----' >&2; exec sleep 1000"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string shown;
  while (shown.size() < 9 && std::chrono::steady_clock::now() < deadline) {
    CHECK_FALSE(job.Wait(std::chrono::milliseconds(20)));
    shown += shell.err_pipe.Text();
  }
  CHECK(shown == "51% -----");
}

TEST_CASE("a signal that ends the program is told from an exit code", "[launch]") {
  Shell shell;
  JobEnd end = shell.Run("kill -KILL $$");
  CHECK(end.code == 137);
  CHECK(end.leader_lost);
  end = shell.Run("exit 137");
  CHECK(end.code == 137);
  CHECK_FALSE(end.leader_lost);
}

TEST_CASE("a reader that goes away is said once and ends nothing", "[launch]") {
  Shell shell;
  ::close(std::exchange(shell.out_pipe.read, -1));
  const JobEnd end = shell.Run("for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; exit 7");
  CHECK(end.code == 7);
  CHECK(shell.troubles == 1);
  CHECK(shell.trouble == "Broken pipe");
  CHECK(shell.out.broken());
  CHECK_FALSE(shell.out.Drain(kNever));
}

TEST_CASE("a reader that is slow loses nothing, and the other stream goes on", "[launch]") {
  Shell shell;
  // More than the job's pipe and ours take; ours is not read while the job runs.
  const std::string script =
      "(i=0; while [ $i -lt 9000 ]; do echo 0123456789012345678901234567890123456789; "
      "i=$((i+1)); done) & sleep 0.2; echo heard >&2; wait";
  Job job(shell.Setup(script));
  std::string heard, text;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (heard.empty() && std::chrono::steady_clock::now() < deadline) {
    job.Wait(std::chrono::milliseconds(20));
    heard = shell.err_pipe.Text();
  }
  CHECK(heard == "heard\n");
  while (!job.Wait(std::chrono::milliseconds(5))) text += shell.out_pipe.Text();
  while (shell.out.waits()) {
    int looks = 0;
    shell.out.Drain([&] { return ++looks > 20; });
    text += shell.out_pipe.Text();
  }
  text += shell.out_pipe.Text();
  CHECK(text.size() == 9000 * 41);
  CHECK(job.end().code == 0);
}

TEST_CASE("two streams into one pipe, which the first has filled, do not wait for its reader",
          "[launch]") {
  Pipe pipe;
  Output out(pipe.write), err(pipe.write);
  ::fcntl(pipe.write, F_SETFL, O_NONBLOCK);
  const std::string page(4096, 'x');
  while (::write(pipe.write, page.data(), page.size()) > 0) continue;
  ::fcntl(pipe.write, F_SETFL, 0);
  std::string taken(page.size(), ' ');
  REQUIRE(::read(pipe.read, taken.data(), taken.size()) == static_cast<ssize_t>(taken.size()));
  out.Add(page);
  err.Add(page);
  out.WriteSome();
  err.WriteSome();  // would never return
  CHECK_FALSE(out.waits());
  CHECK(err.waits());
}

TEST_CASE("what the program leaves behind is killed with its end", "[launch]") {
  Shell shell;
  const JobEnd end = shell.Run(
      "setsid sh -c 'trap : HUP TERM; sleep 1000; sleep 1000' >/dev/null 2>&1 & echo $!; exit 0");
  CHECK(end.code == 0);
  CHECK(shell.out.Drain(kNever));
  CHECK(IsOver(StateOf(std::stoi(shell.out_pipe.Text()))));
}

TEST_CASE("requests reach the program alone, with its environment and an empty input", "[launch]") {
  Shell shell;
  JobSetup setup = shell.Setup("cat; echo $GIVEN; kill -TERM $$; sleep 1000");
  setup.environment["GIVEN"] = "this";
  const JobEnd end = shell.Run(setup);
  CHECK(end.code == 128 + SIGTERM);
  CHECK(shell.out.Drain(kNever));
  CHECK(shell.out_pipe.Text() == "this\n");
}

TEST_CASE("a line that begins so is seen", "[launch]") {
  for (const bool there : {true, false}) {
    Shell shell;
    JobSetup setup = shell.Setup(there ? "echo; echo resuming after step 3; echo x"
                                       : "echo not resuming after step 3");
    setup.line_begins = "resuming after ";
    Job job(setup);
    StopSequence stop(std::nullopt);
    job.Run(stop);
    CHECK(job.saw_line() == there);
  }
}

TEST_CASE("a program that cannot be started is named", "[launch]") {
  JobSetup setup;
  setup.command = {"/nowhere/mpirun", "-n", "2"};
  CHECK_THROWS_WITH(Job(setup), "cannot start /nowhere/mpirun: No such file or directory");
}

}  // namespace
}  // namespace millrace
