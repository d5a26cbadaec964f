// Programmatic dependent launch: a kernel of a graph is set up while the one before it runs or
// ends.
//
// Where    While a graph is captured on a device whose LaunchPolicy says so, LaunchKernel
//          (launch.cuh) makes the edge from the kernel before a programmatic one
//          (cudaGraphDependencyTypeProgrammatic). The blocks of the next kernel may then take their
//          places early; there they wait, first thing, in BeginKernel, until the kernel before is
//          complete and its writes are visible. What kernels compute is as without.
// When     Only behind exactly one node, which is a kernel: CUDA defines such edges between
//          kernels alone. Behind several nodes, a copy, a fill or nothing, and outside of
//          capture, a launch is as any other. So it is on streams of the greatest priority, which
//          carry collectives: blocks that wait for one would keep multiprocessors from the next.
// Sooner   With `end`, some kernels of few blocks begin beside the kernel before as with `begin`,
//          where they are not in order: products of few rows (matmul/one_row.h, few_rows.h) have
//          their weights to fetch, attention of one row what is cached, norms of few rows and sums
//          of few bytes over peers' memory no more than their places to take. Where blocks are
//          many, those that wait would take places from those that multiply; a chain of linears
//          (matmul/row_chain.h) has one to a multiprocessor, and all of its weights to fetch.
// Next     A kernel that calls LetNextBegin when it has waited has the next one, launched with
//          `end`, wait beside it, and that one alone. With `begin` as many wait as there is room
//          for, and their warps keep a chain of wgmma waiting: a step of one row of GPT-2 in order,
//          all products by kernels such as in_order_row.cu's, took 0.419 ms so and 0.364 with one
//          ahead (H200, in turn). So kernels of one row in order begin that way, and what they
//          follow in a step calls it; products of one_row.h, which are no chain, take as long
//          either way.
// Order    A kernel that has waited ends after the one before it, and so after all before that:
//          waiting for the last is waiting for all. This holds as long as EVERY kernel that
//          LaunchKernel launches calls BeginKernel in every thread, before any return and any
//          access to device memory. Two are allowed ahead of it. Reading what no op of the step
//          writes, where the checker proves that (RowLinearAttrs::constant, MatmulAttrs::constant;
//          what attention over a cache finds, cache/cache.h). And within one op what was complete
//          before the kernel ahead had waited, where that one calls LetNextBegin behind its wait.
//          Kernels launched otherwise (the libraries', <<<>>>) get no such edge from here. What the
//          libraries ask for themselves is as before: nccl_fence.h stands ahead of those of theirs
//          that do not wait.
// Source   CUDA Programming Guide 13, "Programmatic Dependent Launch and
//          Synchronization", use in graphs.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/base/policies.h"

namespace millrace {

class CudaDevice;

namespace cuda {

// CudaDevice::Attached<LaunchPolicy>(). Holds for launches from then on.
struct LaunchPolicy {
  explicit LaunchPolicy(CudaDevice&) {}
  EarlyLaunch early = EarlyLaunch::kOff;
};

// What a launch needs beside its arguments. LaunchOn of views.h makes one.
struct Launch {
  cudaStream_t stream;
  int sms;                   // multiprocessors of the device
  EarlyLaunch early;         // as the device's policy
  bool one_row = false;      // a product or attention of one row
  bool cooperative = false;  // all of its blocks are on the device at once, or none
};

// Makes the edge to the next node captured on the stream, which must be a kernel that begins with
// BeginKernel, a programmatic one; nothing where the conditions above do not hold.
void LetBeginEarly(const Launch& launch);

// As much shared memory as there is, and little of the first cache. A multiprocessor whose memory
// is split otherwise than the next kernel asks for must be idle before that one begins there.
cudaLaunchAttribute SharedMemorySplit();
// Whether a kernel asks for that split: where kernels begin early, those of one row, and whatever
// has a few blocks only.
bool AsksForSplit(const Launch& launch, dim3 grid);

}  // namespace cuda
}  // namespace millrace
