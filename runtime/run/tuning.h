// Which algorithms a run's products use, and where they come from. Measuring takes seconds and
// other algorithms give other bits, so a run measures once, when it begins: what was measured is
// kept in execution.tuning_file and in each of its checkpoints, and a run that goes on never
// measures by itself.
//
//   new run        the file's algorithms; what it lacks is measured and added. A file of another
//                  GPU or library version is put aside as <file>.old.
//   goes on        the checkpoint's. A file that is missing is written from it. Products that
//                  neither has (the plan is another one) take the library's first suggestions,
//                  with a note.
//   contradiction  of the file and the checkpoint, or a checkpoint of another GPU or library
//                  version: Error(kConfig), which says what to do.
//   tune_again     (execution.tune_again) as a new run with no file: everything is measured.
//   old checkpoint that says nothing of algorithms: as a new run, with a note.
//
// Only products of matrices are tuned. Collectives and attention are not: NCCL's choice follows
// from its version and the topology, attention's from shapes alone
// (kernels/ops/attention_choice.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/ops/model_ops.h"
#include "kernels/ops/shape.h"
#include "kernels/ops/tuning.h"
#include "runtime/config/config.h"
#include "runtime/plan/step_plan.h"
#include "runtime/run/checkpoint/run_checkpoint.h"

namespace millrace {

// A library whose algorithms can be chosen; a backend makes one (runtime/api/cuda_tuning.h).
struct Tuner {
  std::string device, library_version;  // that its tables are of
  // Entries of all these products and of their fused forms. On rank 0 only.
  std::function<TuningTable(const std::vector<MatmulOp<Shape>>&)> measure;
  // The table's algorithms are in force from now on, and only those.
  std::function<void(const TuningTable&)> install;
};

struct TuningRequest {
  const Config* config = nullptr;
  const StepPlan* train = nullptr;   // null: nothing is measured
  std::optional<SavedTuning> saved;  // of the newest checkpoint; none: there is none, or it is left
  bool goes_on = false;              // training goes on from that checkpoint
  std::function<void(const std::string&)> say;  // null: nothing is said
};

struct ChosenTuning {
  std::string hash;   // TuningTable::Hash of what is in force; "": nothing is tuned
  std::string table;  // ToText, of the saved products and of the plan's: RunIdentity::tuning
};

// A collective: rank 0 chooses, all install, and it is compared that all have the same in force.
// Errors: as above; kData (a file or a checkpoint that is no tuning table); kIo.
ChosenTuning ChooseTuning(const Tuner& tuner, const TuningRequest& request, Communicator& world);

}  // namespace millrace
