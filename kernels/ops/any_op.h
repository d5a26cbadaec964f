// The members of AnyOp, for the one source that instantiates them for a kind of view: the class,
// and its constructor for each op.
#pragma once

#include <type_traits>
#include <utility>
#include <variant>

#include "kernels/ops/op_list.h"

namespace millrace {

template <class V>
template <template <class> class Op>
AnyOp<V>::AnyOp(Op<V> op) : Alternatives(std::in_place_type<Op<V>>, std::move(op)) {}
template <class V>
AnyOp<V>::AnyOp() = default;
template <class V>
AnyOp<V>::AnyOp(const AnyOp&) = default;
template <class V>
AnyOp<V>::AnyOp(AnyOp&&) noexcept = default;
template <class V>
AnyOp<V>& AnyOp<V>::operator=(const AnyOp&) = default;
template <class V>
AnyOp<V>& AnyOp<V>::operator=(AnyOp&&) noexcept = default;
template <class V>
AnyOp<V>::~AnyOp() = default;

}  // namespace millrace
