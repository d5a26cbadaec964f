// Keys that can have no effect: the table of what makes which key idle.
//
// A key counts where its value differs from its default: a default asks for nothing, whoever
// writes it. What becomes of an idle key is the loader's choice (load.h): an error where its author
// could have known, a note where somebody else decided later.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/validate.h"

namespace millrace {

// Who makes a key idle.
enum class IdleBy {
  kKeys,     // the values of other keys
  kWorld,    // the number of ranks, which no key has fixed
  kMachine,  // what `execution.backend: auto` found
  kCaller,   // the program that makes the steps
};

struct IdleKey {
  std::string key;
  IdleBy by = IdleBy::kKeys;
  std::vector<std::string> causes;  // the keys whose values make it idle; none but for kKeys
  std::string reason;               // "a constant schedule does not decay"
};

// In the order of the documentation; a key that is idle for several reasons is there for each of
// them. Each key of `config` lies in its range. Where the world or the machine is not known,
// nothing is idle because of it.
std::vector<IdleKey> FindIdleKeys(const Config& config, const ConfigContext& context);

}  // namespace millrace
