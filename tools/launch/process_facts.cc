#include "tools/launch/process_facts.h"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace millrace {
namespace {

std::string Word(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

}  // namespace

char StateOf(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::stringstream text;
  text << in.rdbuf();
  const std::string stat = text.str();
  const size_t name_end = stat.rfind(')');
  return name_end == stat.npos || name_end + 2 >= stat.size() ? 'X' : stat[name_end + 2];
}

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

std::vector<pid_t> LivingChildren(pid_t pid) {
  std::vector<pid_t> living = ChildrenOf(pid);
  std::erase_if(living, [](pid_t child) { return IsOver(StateOf(child)); });
  return living;
}

ProcessLook LookAt(pid_t pid) {
  ProcessLook look;
  const std::string program = Word(fmt::format("/proc/{}/comm", pid));
  look.is_mpirun = program == "mpirun" || program == "mpiexec" || program == "orterun";
  if (!look.is_mpirun) return look;
  look.state = StateOf(pid);
  const std::string waits_in = Word(fmt::format("/proc/{}/wchan", pid));
  look.in_lock = waits_in.empty() || waits_in == "0" || waits_in.find("futex") != waits_in.npos;
  look.children = LivingChildren(pid);
  return look;
}

}  // namespace millrace
