// What the authors of a configuration gave, where each value stands, and what is wrong with it.
//
// Authors  Each file is one, later ones take precedence; all of `--set` are one, later than every
//          file; a default has none.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/keys.h"

namespace millrace {

constexpr size_t kCommandLine = std::numeric_limits<size_t>::max();  // the author of `--set`

struct GivenValue {
  KeyValue value;      // null for a nullable section
  std::string origin;  // "run.json:3"
  std::string place;   // "run.json:3:5"
  size_t author = 0;
};

struct GivenValues {
  std::map<std::string, GivenValue> keys;     // values of keys, and explicit nulls of sections
  std::map<std::string, GivenValue> objects;  // nullable sections that are there
  std::set<std::string> failed;               // keys whose value is not known
  bool is_partial = false;                    // a file could not be read

  const GivenValue* Find(const std::string& path) const;                // null: nobody gave it
  std::string FirstGiven(const std::vector<std::string>& paths) const;  // else the first
  bool HasFailed(const std::string& path) const;  // it, or the section around it
  // Whether a rule about these keys proves something: not so where a key is wrong already, or will
  // be filled by a folder to start from.
  bool AreKnown(const std::vector<std::string>& paths, const Config& config) const;
  // "optimizer.lr = 0.1 (run.json:3:5), train.steps = 1000 (default)"
  std::string Shown(const std::vector<std::string>& paths, const Config& config) const;
};

// Problems of a configuration, in the order in which a reader of its files meets them.
class ProblemList {
 public:
  // At `offset` of the source of that number in the order of precedence.
  // `key`: "" where it is about none.
  void Add(size_t source, size_t offset, std::string key, std::string text) {
    problems_.push_back({source, offset, std::move(key), std::move(text)});
  }
  void ThrowIfAny();  // ConfigError with all of them

 private:
  struct Listed {
    size_t source, offset;
    std::string key, text;
  };
  std::vector<Listed> problems_;
};

}  // namespace millrace
