// What plans run on, of one rank. All of it outlives whatever has a context.
#pragma once

namespace millrace {

class CommSet;
class Device;
class ProfilerRanges;
class ProgressMarks;
struct KernelTable;

struct ExecutorContext {
  Device* device = nullptr;
  const KernelTable* kernels = nullptr;
  CommSet* comms = nullptr;
  ProgressMarks* marks = nullptr;    // null: none are made
  ProfilerRanges* ranges = nullptr;  // null: nobody listens
};

}  // namespace millrace
