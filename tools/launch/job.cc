#include "tools/launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"
#include "tools/launch/process_facts.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll(20), kLook(250);
constexpr std::chrono::milliseconds kHeldBack(300);  // for the rest of what may be mpirun's words
constexpr std::chrono::seconds kLastWords(2);        // for a pipe that somebody else still holds
constexpr int kCodeOfSignal = 128;

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void Become(char* const* arguments, char* const* environment, pid_t parent,
                         int death_signal, const int (&streams)[3], int report) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, death_signal);
  if (::getppid() != parent) ::_exit(1);  // it died before that
  ::signal(SIGPIPE, SIG_DFL);
  UnblockStopSignals();
  for (int i = 0; i < 3; ++i)
    if (streams[i] != i) ::dup2(streams[i], i);
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

std::vector<std::string> Merged(const std::map<std::string, std::string>& over) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!over.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : over) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Job::Job(const JobSetup& setup)
    : line_begins_(setup.line_begins), words_(setup.rank_token), looked_(Clock::now()) {
  MR_CHECK((setup.out == nullptr) == (setup.err == nullptr), "one stream of a job alone");
  CatchStopRequests();
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const pid_t child : LivingChildren(::getpid())) foreign_.insert(child);
  Start(setup);
}

void Job::Start(const JobSetup& setup) {
  const std::vector<std::string> variables = Merged(setup.environment);
  const std::vector<char*> words = Pointers(setup.command), settings = Pointers(variables);
  const bool input = setup.reads_input && ::isatty(STDIN_FILENO) == 0;
  int streams[3] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
  std::vector<int> theirs;  // ends that the program alone keeps
  if (!input) {
    // One that has ended. Not /dev/null, which in some containers is a file with something in it.
    const Pipe none;
    ::close(none.write);
    theirs.push_back(streams[0] = none.read);
  }
  for (const auto& [number, to] : {std::pair(1, setup.out), std::pair(2, setup.err)}) {
    if (to == nullptr) continue;
    const Pipe pipe;
    ::fcntl(pipe.read, F_SETFL, O_NONBLOCK);
    theirs.push_back(streams[number] = pipe.write);
    streams_.push_back({pipe.read, to});
  }
  const Pipe report;
  theirs.push_back(report.write);
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    Become(words.data(), settings.data(), self, setup.death_signal, streams, report.write);
  int error = pid_ < 0 ? errno : 0;
  for (const int end : theirs) ::close(end);
  while (pid_ > 0 && ::read(report.read, &error, sizeof error) < 0 && errno == EINTR) continue;
  ::close(report.read);
  if (error == 0) return;
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  for (const Stream& stream : streams_) ::close(stream.source);
  throw Error(ErrorCode::kConfig, fmt::format("cannot start {}: {}", setup.command.front(),
                                              std::generic_category().message(error)));
}

Job::~Job() {
  if (!ended_) Signal(SIGKILL);
  while (!Wait(std::chrono::seconds(1))) continue;
}

void Job::Signal(int number) {
  if (!ended_) ::kill(pid_, number);
}

void Job::Run(StopSequence& stop, const std::function<void()>& look) {
  const auto start = Clock::now();
  bool ended = false;
  while (!ended) {
    ended = Wait(look ? kPoll : kLook);
    const std::chrono::duration<double> now = Clock::now() - start;
    if (const int number = ended ? 0 : stop.Next(now.count(), StopRequests())) Signal(number);
    if (look) look();
  }
}

bool Job::Wait(std::chrono::milliseconds patience) {
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
    CopySome(std::min(left, kLook));
  }
  return true;
}

// Waits for something to read, for a reader of ours, or for a signal. A stream whose reader is slow
// is not read: its writer waits, and the other stream goes on.
void Job::CopySome(std::chrono::milliseconds patience) {
  std::vector<pollfd> ready = {{WakeDescriptor(), POLLIN, 0}};
  for (const Stream& stream : streams_)
    ready.push_back(stream.to->waits() ? pollfd{stream.to->descriptor(), POLLOUT, 0}
                                       : pollfd{stream.source, POLLIN, 0});
  if (words_.holds()) patience = std::min(patience, kHeldBack);
  ::poll(ready.data(), ready.size(), static_cast<int>(patience.count()));
  char drained[64];
  while (::read(WakeDescriptor(), drained, sizeof drained) > 0) continue;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (ready[i + 1].revents == 0) continue;
    if (streams_[i].to->waits())
      streams_[i].to->WriteSome();
    else
      ReadSome(streams_[i]);
  }
  if (words_.holds() && Clock::now() - streams_.back().read_at >= kHeldBack)
    streams_.back().to->Add(words_.Release());
}

// False when there is nothing more to come.
bool Job::ReadSome(Stream& stream) {
  char piece[1 << 16];
  const ssize_t count = ::read(stream.source, piece, sizeof piece);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (count <= 0) {
    ::close(stream.source);
    stream.source = -1;
    return false;
  }
  stream.read_at = Clock::now();
  const std::string_view text(piece, static_cast<size_t>(count));
  if (&stream == &streams_.back()) {
    stream.to->Add(words_.Read(text));
  } else {
    LookForLine(text);
    stream.to->Add(text);
  }
  return true;
}

// The program has ended: so must all that it has left, and what they said is passed on.
void Job::Collect(int status) {
  ended_ = true;
  end_.leader_lost = WIFSIGNALED(status);
  end_.code = end_.leader_lost ? kCodeOfSignal + WTERMSIG(status) : WEXITSTATUS(status);
  KillOrphans();
  ReadRest();
  end_.said = words_.facts();
}

void Job::KillOrphans() {
  const auto own = [this](pid_t child) { return !foreign_.contains(child); };
  while (true) {
    for (const pid_t child : LivingChildren(::getpid()))
      if (own(child)) ::kill(child, SIGKILL);
    const pid_t collected = ::waitpid(-1, nullptr, WNOHANG);
    if (collected < 0 && errno == ECHILD) return;
    if (collected != 0) continue;
    const std::vector<pid_t> left = ChildrenOf(::getpid());  // ended ones may still hand on theirs
    if (!left.empty() && std::none_of(left.begin(), left.end(), own)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Job::ReadRest() {
  const auto deadline = Clock::now() + kLastWords;
  for (Stream& stream : streams_) {
    while (stream.source >= 0 && Clock::now() < deadline) {
      pollfd ready = {stream.source, POLLIN, 0};
      if (::poll(&ready, 1, 10) > 0) ReadSome(stream);
    }
    if (stream.source >= 0) ::close(stream.source);
    stream.source = -1;
  }
  if (words_.holds()) streams_.back().to->Add(words_.Release());
}

void Job::WatchForHang() {
  const auto now = Clock::now();
  if (now - looked_ < kLook) return;
  looked_ = now;
  if (end_.stuck != Stuck::kNo) return;
  end_.stuck = hang_watch_.Look(now, LookAt(pid_), words_.facts());
  if (end_.stuck != Stuck::kNo) Signal(SIGKILL);
}

void Job::LookForLine(std::string_view text) {
  for (const char c : text) {
    if (c == '\n') line_.clear();
    if (c == '\n' || line_.size() >= line_begins_.size()) continue;
    line_ += c;
    if (line_ == line_begins_) saw_line_ = true;
  }
}

}  // namespace millrace
