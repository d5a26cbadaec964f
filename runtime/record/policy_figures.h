// How far a policy has moved in a step from the one that has sampled.
#pragma once

namespace millrace {

// Means over the targets of a step that count; NaN where there are none.
struct PolicyFigures {
  double clip_fraction = 0;  // of targets whose ratio was clipped, so that it has no gradient
  double ratio = 0;          // of probabilities: the policy's to the old ones
  double kl = 0;             // divergence in nats: from the reference, else from the old ones
  bool operator==(const PolicyFigures&) const = default;
};

}  // namespace millrace
