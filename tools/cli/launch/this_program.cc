#include "tools/cli/launch/this_program.h"

#include <mpi.h>

#include <fstream>
#include <sstream>

#include "tools/launch/mpirun_words.h"

namespace millrace {

std::string CommandLine() {
  std::ifstream words("/proc/self/cmdline", std::ios::binary);
  std::string line;
  for (std::string word; std::getline(words, word, '\0');) {
    if (word.starts_with(kAsRank)) continue;  // the launcher's own
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$*?;&|<>()") == word.npos;
    line += (line.empty() ? "" : " ") + (plain ? word : "'" + word + "'");
  }
  return line;
}

std::string MpiLibrary() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);  // one of the few calls that need no MPI_Init
  const std::string line = text;
  return line.substr(0, line.find_first_of(",\n"));
}

bool MpiStarted() {
  int started = 0;
  return MPI_Initialized(&started) == MPI_SUCCESS && started != 0;
}

}  // namespace millrace
