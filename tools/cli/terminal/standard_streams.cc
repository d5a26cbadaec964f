#include "tools/cli/terminal/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "runtime/base/error.h"

namespace millrace {

void PrepareStandardStreams(const std::string& verb) {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) == -1)
      ::open("/dev/null", O_RDWR);  // takes the lowest free number
  if (verb == "train") std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::setvbuf(stderr, nullptr, _IOLBF, BUFSIZ);
  std::cerr.unsetf(std::ios_base::unitbuf);
}

int FinishStandardOutput(const std::string& verb, int code) {
  std::cout.flush();
  if (std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (verb == "train") {
    std::cerr << "millrace: warning: standard output could not be written to its end; "
                 "metrics.jsonl has every step"
              << std::endl;
    return code;
  }
  std::cerr << "millrace: standard output could not be written to its end (disk full, or its "
               "reader has ended)"
            << std::endl;
  constexpr int kDiffer = 1;  // of `compare`: an answer, not a failure
  return code == 0 || code == kDiffer ? ExitCode(ErrorCode::kIo) : code;
}

}  // namespace millrace
