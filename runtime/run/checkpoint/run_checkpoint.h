// A run's state from run.dir/checkpoints: what a saved state must match, and how another world size
// reads it. Saving is run_saver.h's; the folder format, checksums and atomic publication are
// runtime/data/checkpoint/checkpoint_store.h's.
//
// Bits     Resuming at the same mesh restores every bit: master weights, moments, step scalars,
//          counters. Another mesh or precision loads the same logical values; counters then begin
//          at zero.
// Errors   kConfig: the folder holds another model, or a run would go on with other data.sources.
//          kCheckpoint: nothing valid where `must` asks for it, or damage under `must`. kIo: this
//          process is not let read one that may be sound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/policies.h"
#include "runtime/plan/layout/model_shape.h"

namespace millrace {

class Engine;

// What a checkpoint belongs to.
struct RunIdentity {
  // Not how its parameters are grouped into units or stored: that may change on resume.
  ModelShape model;
  // Another value: resumed with a warning, the order of the data changes.
  std::string data_fingerprint;
  int64_t shuffle_seed = 0;
  int64_t global_batch = 0;  // another value: warning
  // JSON text of the whole configuration, for `inspect`. Other masks in its `data`: warning.
  std::string config;
  // TuningTable::ToText of the algorithms in force; "": nothing is tuned. Others: warning, the bits
  // change.
  std::string tuning = {};
  // RunData::BlendJson. Another blend: Error(kConfig) where a run would go on with it.
  std::string blend = "null";
  // Hash128 of data.tokenizer's file; "": bytes. Another: warning, the ids mean something else.
  std::string tokenizer = {};
};

// What a checkpoint says of the algorithms that it was trained with.
struct SavedTuning {
  std::string checkpoint;  // its folder
  int64_t step = 0;
  bool recorded = false;  // false: saved by a version that did not
  std::string table;      // as RunIdentity::tuning
};
// Of run_dir's newest checkpoint that looks usable; none where there is none. Not a collective;
// nothing is moved.
std::optional<SavedTuning> ReadSavedTuning(const std::string& run_dir);

// How far a run is.
struct RunProgress {
  int64_t step = 0;  // steps done
  // Sequences seen by all ranks; goes on counting when the global batch changes.
  int64_t samples = 0;
  std::string state = "{}";   // JSON of the training loop's own, the same on every rank
  std::string data = "null";  // JSON: Session::DataState
};

struct ResumedRun {
  RunProgress progress;
  std::string path;                   // "": nothing was loaded, but there is something to say
  int64_t world = 0;                  // ranks that saved it
  std::vector<std::string> warnings;  // checkpoints put or left aside, and why
  std::vector<std::string> changes;   // what is not as it was saved: data, world, layout
};

// Collective. Loads the newest valid checkpoint into the engine, by policy; nothing when there is
// none (auto) or never. Damaged ones are quarantined and reported under auto.
std::optional<ResumedRun> ResumeRun(Engine& engine, const std::string& run_dir, ResumePolicy policy,
                                    const RunIdentity& identity);

// Collective. Loads `checkpoint`, or with "" the newest of run_dir that looks usable:
// for evaluation, generation, export. kCheckpoint when there is none, or it is
// damaged; nothing is moved, and newer ones that do not look usable are warnings.
ResumedRun LoadForUse(Engine& engine, const std::string& run_dir, const std::string& checkpoint,
                      const RunIdentity& identity);

// The two halves of LoadForUse: which checkpoint, after all that is checked of it, so far without
// an effect; and its states into the engine. Collectives.
struct CheckpointToUse {
  std::string folder;
  std::vector<std::string> warnings;  // newer ones that are damaged, and how
};
CheckpointToUse CheckpointForUse(Engine& engine, const std::string& run_dir,
                                 const std::string& checkpoint, const RunIdentity& identity);
ResumedRun LoadVerified(Engine& engine, const CheckpointToUse& checkpoint,
                        const RunIdentity& identity);

// Whether a checkpoint of this run may be saved into run_dir now: where it is told from others, and
// thinned, by its step. Not a collective. Error(kCheckpoint) naming the one that is in the way, of
// this step or a later one, Error(kConfig) where the newest is of another model.
void RequirePlaceFor(const std::string& run_dir, int64_t step, const RunIdentity& identity);

// Collective. Loads one checkpoint folder's logical weights (and moments) whatever
// the world it was saved by.
ResumedRun LoadRun(Engine& engine, const std::string& checkpoint, const RunIdentity& identity);

}  // namespace millrace
