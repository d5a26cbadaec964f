#include "tools/cli/supervised_job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kHang(5);
constexpr std::chrono::seconds kOtherHost(15);  // for daemons on other hosts, to end and say so
constexpr std::chrono::milliseconds kLook(250);
constexpr std::chrono::seconds kLastWords(
    2);  // for output after the end, in case its reader is slow
constexpr int kSignalBase = 128;
constexpr int64_t kOneRequestNs = 100'000'000;
constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

std::atomic<int> stop_requests{0};
std::atomic<int64_t> last_request_ns{0};  // 0: none yet
std::atomic<int> wake_end{-1};            // of a pipe: what is written there ends poll()

// Async-signal-safe. Handlers, no signalfd: libraries have threads, which have not blocked the
// signals.
void OnSignal(int signal) {
  const int saved = errno;
  if (signal != SIGCHLD) {
    timespec now = {};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
    const int64_t before = last_request_ns.exchange(ns);
    if (before == 0 || ns - before >= kOneRequestNs) stop_requests.fetch_add(1);
  }
  [[maybe_unused]] const ssize_t written = ::write(wake_end.load(), "x", 1);
  errno = saved;
}

// The pipe's other end.
int CatchSignals() {
  static const int wake = [] {
    int ends[2];
    MR_CHECK(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipe: {}",
             std::generic_category().message(errno));
    wake_end = ends[1];
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGCHLD, &action, nullptr);
    for (const int number : kStopSignals) {
      struct sigaction before;
      if (sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(number, &action, nullptr);
    }
    ::signal(SIGPIPE, SIG_IGN);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    return ends[0];
  }();
  return wake;
}

// Children of a process, also of its threads, ended ones too.
std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream in(task.path() / "children");
    for (pid_t child; in >> child;) children.push_back(child);
  }
  return children;
}

std::string Word(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

char StateOf(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::stringstream text;
  text << in.rdbuf();
  const std::string stat = text.str();
  const size_t name_end = stat.rfind(')');
  return name_end == stat.npos || name_end + 2 >= stat.size() ? 'X' : stat[name_end + 2];
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void Become(char* const* arguments, char* const* environment, pid_t parent,
                         const int (&streams)[3], int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it died before that
  ::signal(SIGPIPE, SIG_DFL);
  for (int i = 0; i < 3; ++i) ::dup2(streams[i], i);
  ::execvpe(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    MR_REQUIRE(ErrorCode::kIo, ::pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe: {}",
               std::generic_category().message(errno));
    read = ends[0], write = ends[1];
  }
};

}  // namespace

void CatchStopRequests() { CatchSignals(); }

int StopRequests() { return stop_requests.load(); }

std::vector<pid_t> LivingChildren(pid_t pid) {
  std::vector<pid_t> living = ChildrenOf(pid);
  std::erase_if(living, [](pid_t child) {
    const char state = StateOf(child);
    return state == 'Z' || state == 'X';
  });
  return living;
}

// From a pipe to one of our own streams, without ever waiting for either.
class SupervisedJob::Relay {
 public:
  Relay(int from, int to) : from_(from), to_(to) { ::fcntl(from, F_SETFL, O_NONBLOCK); }
  ~Relay() {
    if (from_ >= 0) ::close(from_);
  }

  bool done() const { return from_ < 0 && pending_.empty(); }
  pollfd What() const {
    if (!pending_.empty()) return {to_, POLLOUT, 0};
    return {from_, POLLIN, 0};
  }

  // Returns what was read, which is also pending.
  std::string_view Move() {
    if (!pending_.empty()) {
      // As much as a pipe that is ready takes at once.
      const ssize_t count =
          ::write(to_, pending_.data(), std::min<size_t>(pending_.size(), PIPE_BUF));
      if (count > 0) pending_.erase(0, static_cast<size_t>(count));
      if (count < 0 && errno != EINTR && errno != EAGAIN) broken_ = true;
      if (broken_) pending_.clear();
      return {};
    }
    if (from_ < 0) return {};
    char text[PIPE_BUF];
    const ssize_t count = ::read(from_, text, sizeof text);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) {
      ::close(from_);
      from_ = -1;
    }
    if (count <= 0) return {};
    last_.assign(text, static_cast<size_t>(count));
    if (!broken_) pending_ = last_;
    return last_;
  }

 private:
  int from_, to_;
  std::string pending_, last_;
  bool broken_ = false;  // nobody reads any more
};

SupervisedJob::SupervisedJob(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& environment,
                             std::string line_begins)
    : line_begins_(std::move(line_begins)),
      looked_(Clock::now()),
      busy_(looked_),
      had_rank_(looked_) {
  CatchSignals();
  for (const pid_t child : LivingChildren(::getpid())) foreign_.insert(child);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> words, settings;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& variable : variables)
    settings.push_back(const_cast<char*>(variable.c_str()));
  words.push_back(nullptr);
  settings.push_back(nullptr);

  const Pipe out, err, report;
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    Become(words.data(), settings.data(), self, {null, out.write, err.write}, report.write);
  const int fork_error = errno;
  for (const int end : {null, out.write, err.write, report.write}) ::close(end);
  relays_.push_back(std::make_unique<Relay>(out.read, STDOUT_FILENO));
  relays_.push_back(std::make_unique<Relay>(err.read, STDERR_FILENO));
  int error = pid_ < 0 ? fork_error : 0;
  while (pid_ > 0 && ::read(report.read, &error, sizeof error) < 0 && errno == EINTR) continue;
  ::close(report.read);
  if (error == 0) return;
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  throw Error(ErrorCode::kConfig, fmt::format("cannot start {}: {}", command.front(),
                                              std::generic_category().message(error)));
}

SupervisedJob::~SupervisedJob() {
  if (ended_) return;
  Kill();
  while (!Wait(std::chrono::seconds(1))) continue;
}

void SupervisedJob::Signal(int number) {
  if (!ended_) ::kill(pid_, number);
}

void SupervisedJob::Kill() { Signal(SIGKILL); }

bool SupervisedJob::Wait(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  const int requests = StopRequests();
  while (!ended_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      Collect(status);
      break;
    }
    WatchForHang();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || StopRequests() != requests) return false;
    std::vector<pollfd> ready = {{CatchSignals(), POLLIN, 0}};
    for (const auto& relay : relays_) ready.push_back(relay->What());
    ::poll(ready.data(), ready.size(), static_cast<int>(std::min(left, kLook).count()));
    char drained[64];
    while (::read(CatchSignals(), drained, sizeof drained) > 0) continue;
    for (size_t i = 0; i < relays_.size(); ++i) {
      if (ready[i + 1].revents == 0) continue;
      const std::string_view text = relays_[i]->Move();
      Look(i, text);
    }
  }
  return true;
}

// The program has ended: so must all that it has left, and what they said is passed on.
void SupervisedJob::Collect(int status) {
  ended_ = true;
  leader_lost_ = WIFSIGNALED(status);
  code_ = leader_lost_ ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
  const auto own = [this](pid_t child) { return !foreign_.contains(child); };
  while (true) {
    for (const pid_t child : LivingChildren(::getpid()))
      if (own(child)) ::kill(child, SIGKILL);
    const pid_t collected = ::waitpid(-1, nullptr, WNOHANG);
    if (collected < 0 && errno == ECHILD) break;
    if (collected != 0) continue;
    const std::vector<pid_t> left = ChildrenOf(::getpid());  // ended ones may still hand on theirs
    if (!left.empty() && std::none_of(left.begin(), left.end(), own)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const auto deadline = Clock::now() + kLastWords;
  for (size_t i = 0; i < relays_.size(); ++i) {
    while (!relays_[i]->done() && Clock::now() < deadline) {
      pollfd ready = relays_[i]->What();
      if (::poll(&ready, 1, 10) <= 0) continue;
      const std::string_view text = relays_[i]->Move();
      Look(i, text);
    }
  }
}

// Open MPI 4.1.4 at times deadlocks on its way out of a job that ended badly
// (third_party/mpi/guarded_mpirun.sh says how that is told from an mpirun that still has work), or
// waits for a daemon on a host that does not answer.
void SupervisedJob::WatchForHang() {
  const auto now = Clock::now();
  if (now - looked_ < kLook) return;
  looked_ = now;
  const bool children = !LivingChildren(pid_).empty();
  had_children_ = had_children_ || children;
  const std::string waits_in = Word(fmt::format("/proc/{}/wchan", pid_));
  const bool in_lock =
      waits_in.empty() || waits_in == "0" || waits_in.find("futex") != waits_in.npos;
  // Of other programs nothing is known: one that has had a child may well train.
  const std::string program = Word(fmt::format("/proc/{}/comm", pid_));
  const bool is_mpirun = program == "mpirun" || program == "mpiexec" || program == "orterun";
  if (!is_mpirun || !had_children_ || children || !in_lock || StateOf(pid_) != 'S') busy_ = now;
  if (!is_mpirun || !words_.ended() || HasRankHere()) had_rank_ = now;
  if (now - busy_ < kHang && now - had_rank_ < kOtherHost) return;
  hung_ = true;
  Kill();
}

bool SupervisedJob::HasRankHere() const {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const pid_t child : LivingChildren(pid_))
    if (std::filesystem::read_symlink(fmt::format("/proc/{}/exe", child), error) == own)
      return true;
  return false;
}

void SupervisedJob::Look(size_t stream, std::string_view text) {
  if (stream == 1) return words_.Read(text);
  for (const char c : text) {
    if (c == '\n') line_.clear();
    if (c == '\n' || line_.size() >= line_begins_.size()) continue;
    line_ += c;
    if (line_ == line_begins_) saw_line_ = true;
  }
}

}  // namespace millrace
