// A vector that is indexed by the ids of its elements and by nothing else: an id of another range
// does not compile, and no cast stands where an element is named. An id has the index as `value`
// (runtime/plan/view.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {

template <class Id, class T>
class IdVector {
 public:
  IdVector() = default;
  explicit IdVector(size_t size, const T& value = T()) : items_(size, value) {}

  T& operator[](Id id) { return items_[static_cast<size_t>(id.value)]; }
  const T& operator[](Id id) const { return items_[static_cast<size_t>(id.value)]; }
  // False for the absent id, too.
  bool Has(Id id) const { return static_cast<size_t>(id.value) < items_.size(); }
  size_t size() const { return items_.size(); }
  Id push_back(T item) {
    items_.push_back(std::move(item));
    return Id{static_cast<int32_t>(items_.size()) - 1};
  }

  // All ids, ascending.
  class Ids {
   public:
    explicit Ids(int32_t value) : id_{value} {}
    Id operator*() const { return id_; }
    Ids& operator++() { return ++id_.value, *this; }
    bool operator==(const Ids&) const = default;
    Ids begin() const { return Ids(0); }
    Ids end() const { return *this; }

   private:
    Id id_;
  };
  Ids ids() const { return Ids(static_cast<int32_t>(items_.size())); }

 private:
  std::vector<T> items_;
};

}  // namespace millrace
