// How far a run is, seen from outside: the last line of metrics.jsonl, without reading the rest.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace millrace {

class MetricsWatch {
 public:
  // What is there now belongs to earlier attempts.
  explicit MetricsWatch(const std::string& run_dir);

  // Looks again. False: nothing has changed since the last look.
  bool Poll();
  bool changed() const {
    return changed_;
  }  // since the beginning: this attempt has opened it for its steps
  int64_t step() const { return step_; }  // of the last whole line; 0: there is none

 private:
  int64_t LastStep() const;

  const std::string path_;
  struct Image {
    ino_t file = 0;
    off_t bytes = -1;
    int64_t modified_ns = 0;
    bool operator==(const Image&) const = default;
  };
  Image Look() const;
  Image seen_;
  bool changed_ = false;
  int64_t step_ = 0;
};

}  // namespace millrace
