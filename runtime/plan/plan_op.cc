#include "runtime/plan/plan_op.h"

#include <type_traits>
#include <variant>

#include "kernels/ops/any_op.h"

namespace millrace {

// What vectors of ops rely on when they grow.
static_assert(std::is_nothrow_move_constructible_v<KernelOp::Alternatives> &&
              std::is_nothrow_move_assignable_v<KernelOp::Alternatives>);

template class AnyOp<View>;
#define MILLRACE_FROM(Name, ...) template AnyOp<View>::AnyOp(Name##Op<View>);
MILLRACE_KERNEL_OPS(MILLRACE_FROM)
MILLRACE_COLLECTIVE_OPS(MILLRACE_FROM)
#undef MILLRACE_FROM

void internal::VisitUses(const KernelOp& op, void* context,
                         void (*f)(void*, const View&, Access, std::string_view)) {
  std::visit(
      [&](const auto& typed) {
        std::decay_t<decltype(typed)>::Visit(
            typed, [&](const View& view, Access access, std::string_view name) {
              if (view) f(context, view, access, name);
            });
      },
      op);
}

void internal::VisitViews(KernelOp& op, void* context,
                          void (*f)(void*, View&, Update*, std::string_view)) {
  std::visit(
      [&](auto& typed) {
        std::decay_t<decltype(typed)>::Visit(typed,
                                             [&](View& view, auto access, std::string_view name) {
                                               Update* update = nullptr;
                                               if constexpr (requires { access.update; })
                                                 update = &access.update;
                                               if (view) f(context, view, update, name);
                                             });
      },
      op);
}

std::string_view OpName(const KernelOp& op) {
  return std::visit(
      [](const auto& typed) -> std::string_view { return std::decay_t<decltype(typed)>::kName; },
      op);
}

bool IsCollective(const KernelOp& op) {
  return std::holds_alternative<AllGatherOp<View>>(op) ||
         std::holds_alternative<ReduceScatterOp<View>>(op) ||
         std::holds_alternative<AllReduceOp<View>>(op) ||
         std::holds_alternative<AllToAllOp<View>>(op);
}

}  // namespace millrace
