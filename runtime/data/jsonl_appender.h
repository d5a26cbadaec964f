// A file of lines, one JSON value each, that grows while a run goes on and may be read at any
// moment: metrics.jsonl.
//
// Invariant  The file holds whole lines. Each is one write with O_APPEND, so a killed process
//            leaves a whole line or none; a line that a full disk cut short is taken back; a
//            partial last line left by a crash of the machine is cut off when the file is next
//            opened.
// Durable    After Sync, or when the system gets to it.
// Errors     kIo. After a failed Append the next may succeed: the caller knows if a missing line
//            matters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/data/file_system.h"

namespace millrace {

class JsonlAppender {
 public:
  explicit JsonlAppender(std::string path, FileSystem& files = FileSystem::Posix());
  ~JsonlAppender();
  JsonlAppender(const JsonlAppender&) = delete;
  JsonlAppender& operator=(const JsonlAppender&) = delete;

  void Append(std::string_view line);  // without the newline; must contain none
  void Sync();

 private:
  FileSystem& files_;
  std::string path_;
  int fd_;
  int64_t size_ = 0;      // bytes in whole lines
  bool partial_ = false;  // more than that is in the file
};

}  // namespace millrace
