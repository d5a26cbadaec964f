// An answer on its way from the thread that makes it to the one that sends it: a head, then bytes,
// then an end.
//
// Threads  One that writes and one that reads, any. Calls of `wake` come from the writer's, outside
//          of all locks here.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/serve/api_error.h"

namespace millrace {

struct ReplyHead {
  int status = 200;
  std::string content_type = "application/json";
  std::map<std::string, std::string> headers = {};
  bool is_stream = false;  // its length is not known when it begins
};

class ReplyBuffer {
 public:
  // The writer. Begin comes first and once.
  void Begin(ReplyHead head);
  size_t Append(std::string_view bytes);  // how many bytes its reader has not read
  void End();
  void Whole(ReplyHead head, std::string body);  // all three
  void Error(const ApiError& error);             // as a whole

  // The reader. Whether there is something new: the head and all of a whole answer, or bytes of a
  // stream, or its end. If not, `wake` is called once there is.
  bool Ready(std::function<void()> wake);
  ReplyHead head() const;
  size_t Read(char* to, size_t most);  // 0: nothing now
  std::string TakeAll();
  bool AtEnd() const;  // and all has been read

  // For whoever reads no more; the writer is told by what OnAbandon was given.
  void OnAbandon(std::function<void()> call);
  void Abandon();

 private:
  bool HasNews() const;
  void Wake(std::unique_lock<std::mutex> lock);

  mutable std::mutex mutex_;
  ReplyHead head_;
  std::string bytes_;
  size_t read_ = 0;
  bool begun_ = false, ended_ = false;
  std::function<void()> wake_, on_abandon_;
};

}  // namespace millrace
