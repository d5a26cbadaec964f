// What /proc says of other processes.
#pragma once

#include <sys/types.h>

#include <vector>

#include "tools/launch/hang_watch.h"

namespace millrace {

// 'S', 'Z', ...; 'X' when there is none of that number.
char StateOf(pid_t pid);
inline bool IsOver(char state) { return state == 'Z' || state == 'X'; }

// The children of a process, also of its threads; ended ones too, until somebody has waited for
// them. None where /proc does not tell.
std::vector<pid_t> ChildrenOf(pid_t pid);
std::vector<pid_t> LivingChildren(pid_t pid);  // without those

ProcessLook LookAt(pid_t pid);

}  // namespace millrace
