// Muon in a step: the ops of the update of all flats of UpdateRule::kMuon. Internal to
// runtime/plan.
//
// Of each batch of rounds (runtime/plan/layout/muon_rounds.h) every rank forms what its shards
// follow. Where ranks have parts of matrices, all-to-alls make of these whole ones: over the axes
// that shard a flat, then over those that split its matrices, whose pieces are then copied to where
// they belong. Matrices are normalised into one buffer for each shape and made orthogonal there, a
// slice of a shape at a time, but for the last step, which writes them where they came from. Other
// all-to-alls bring the results home, and the weights follow them. What a rank receives of batch
// k + 1 is under way while it works on batch k, and so is what it sends back of batch k - 1; rounds
// of one batch are sent while the next are formed.
//
// Precision  The momentum is f32. Matrices, and products with them, have the dtype that the model
//            computes in: f32, or bf16 as PyTorch's Muon always has. A gram matrix and its
//            polynomial have that dtype, and all products add up in f32, with what is added to
//            them, and are rounded once: as PyTorch's.
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
  // A batch and its buffers, its rounds end to end in each: what this rank works on, from whoever
  // had it, and the same made orthogonal; and what it has of all its flats, before and after.
  struct Batch {
    std::vector<MuonRound> rounds;
    std::vector<MuonShape> shapes;  // worked on one by one: slices of shapes
    int64_t numel = 0;
    View followed, x, ortho, steps;
    const MuonRound& like() const { return rounds.front(); }  // where they are alike
  };

  const FlatParam& FlatOf(const Batch& batch) const {
    return b_.layout.flat(batch.like().flats.front());
  }
  std::string Label(const char* what, const Batch& batch) const;
  UnitId UnitOf(const Batch& batch) const { return FlatOf(batch).key.unit; }
  View NewBuffer(const char* what, const Batch& batch);
  // f(round, where it begins in the batch's buffers).
  template <class F>
  void ForEachRound(const Batch& batch, F&& f) const;
  // f(flat, its shard of `shards`).
  template <class F>
  void ForEachShard(const Batch& batch, const View& shards, F&& f) const;
  void AddWork();
  View Work(BufferId buffer, int64_t matrices, int64_t rows, int64_t columns) const;

  AxisSet FirstExchange(const Batch& batch) const;  // empty: none
  void Collect(Batch& batch);
  void Follow(const Batch& batch);
  void ZeroIdlePlaces(const Batch& batch);
  void ZeroIdleTurns(const Batch& batch);
  void Orthogonalise(Batch& batch);
  void Orthogonalise(const Batch& batch, const MuonShape& shape);
  void Normalise(const Batch& batch, const MuonShape& shape);
  View PolynomialOf(const Batch& batch, const MuonShape& shape, const View& x, double scale);
  void StoreProducts(const Batch& batch, const MuonShape& shape, const View& x,
                     const View& polynomial, double scale);
  void Copy(const char* what, const Batch& batch, const View& x, const View& out);
  // out = a b, or scale_ab a b + scale_c c.
  void EmitProduct(const char* what, const Batch& batch, const View& a, const View& b,
                   const View& out, double scale_ab = 1, const View& c = {}, double scale_c = 0);
  void ZeroGaps(const Batch& batch);
  void Zero(const char* what, const Batch& batch, const View& in, std::vector<Range> ranges);
  // Of every turn that has flats over the axes that shard these, or of every round over those that
  // split them.
  void ExchangeShards(const char* what, const Batch& batch, const View& sent, const View& received);
  void ExchangeParts(const char* what, const Batch& batch, const View& sent, const View& received);
  void Exchange(const char* what, const Batch& batch, const View& sent, const View& received,
                AxisSet axes);
  void SendBack(Batch& batch);
  void Update(const Batch& batch);

  StepBuilder& b_;
  const GradPass& grads_;
  const DType dtype_;
  std::vector<Batch> batches_;
  // For the matrices of a slice: they themselves, twice, of which steps read one and write the
  // other; their gram matrices, and the polynomials of these.
  BufferId x_, y_, gram_, polynomial_;
};

}  // namespace millrace
