// One of our own streams, as the end of a job's. Text waits here until the reader takes it, and
// whoever adds some never does.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace millrace {

class Output {
 public:
  // `on_trouble` is called once, when the stream takes no more (its reader has ended, the disk is
  // full), with the system's word for it. What is added from then on is dropped: a job does not end
  // because nobody reads what it says.
  explicit Output(int descriptor, std::function<void(const std::string& why)> on_trouble = {});

  int descriptor() const { return descriptor_; }
  void Add(std::string_view text);
  bool waits() const { return !waiting_.empty(); }
  void WriteSome();  // as much as goes at once
  bool broken() const { return broken_; }
  // Writes what waits, however slow its reader, until `give_up` says so. False: something is lost.
  bool Drain(const std::function<bool()>& give_up);

 private:
  const int descriptor_;
  const std::function<void(const std::string& why)> on_trouble_;
  std::string waiting_;
  bool broken_ = false;
};

}  // namespace millrace
