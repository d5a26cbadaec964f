// Muon in a step: the ops of the update of all flats of UpdateRule::kMuon. Internal to
// runtime/plan.
//
// Of each round (runtime/plan/layout/muon_rounds.h) every rank forms what its shards follow, an
// all-to-all makes of these one whole flat on each rank, the matrices in it are made orthogonal one
// by one, another all-to-all brings the shards of the results home, and the weights follow them.
// What a rank receives of round k + 1 is under way while it works on round k, and so is what it
// sends back of round k - 1.
//
// Precision  The momentum is f32. Matrices, and products with them, have the dtype that the model
//            computes in: f32, or bf16 as PyTorch's Muon always has. A gram matrix has that dtype,
//            its square is f32, and products add up in f32. The matrix's own share of a step is on
//            the diagonal of the polynomial, so that a step is one product; PyTorch adds it to the
//            product in f32, which saves a rounding.
#pragma once

#include <vector>

#include "runtime/plan/layout/muon_rounds.h"
#include "runtime/plan/schedule/grad_pass.h"
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {

class MuonPass {
 public:
  MuonPass(StepBuilder& builder, const GradPass& grads);

  // Into the body being built, behind the step's statistics. Nothing where no flat asks for it.
  void Emit();

 private:
  // A round and its buffers: shards for all ranks, the flat that is this rank's, twice, of which
  // steps read one and write the other, and shards from all ranks. Without an exchange the flat is
  // both.
  struct Round {
    MuonRound of;
    View sent, x, y, back;
  };

  const FlatParam& FlatOf(const Round& round) const { return b_.layout.flat(round.of.flats[0]); }
  std::string Label(const char* what, const Round& round) const;
  View NewFlat(const char* what, const Round& round);
  View ShardOf(const View& shards, size_t place, const Round& round) const;
  void AddWork();

  void Collect(Round& round);
  void Orthogonalise(Round& round);
  void Step(const Round& round, const MuonMatrix& matrix, const View& from, const View& to,
            double scale);
  void Exchange(const char* what, const Round& round, const View& sent, const View& received);
  void SendBack(Round& round);
  void Update(const Round& round);

  StepBuilder& b_;
  const GradPass& grads_;
  const DType dtype_;
  std::vector<Round> rounds_;
  // For a matrix at a time: its gram matrix, that one's square, the polynomial of both, and the sum
  // of its squares.
  BufferId gram_, square_, polynomial_, sum_;
};

}  // namespace millrace
