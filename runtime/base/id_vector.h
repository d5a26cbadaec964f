// A vector that is indexed by the ids of its elements and by nothing else: an id of another range
// does not compile, and no cast stands where an element is named. An id has the index as `value`
// (runtime/plan/view.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {

// The ids [first, last), ascending; none where `last` is not behind `first`.
template <class Id>
struct IdRange {
  Id first, last;

  class Iterator {
   public:
    explicit Iterator(Id id) : id_(id) {}
    Id operator*() const { return id_; }
    Iterator& operator++() { return ++id_.value, *this; }
    bool operator==(const Iterator& other) const { return id_.value == other.id_.value; }

   private:
    Id id_;
  };
  Iterator begin() const { return Iterator(empty() ? last : first); }
  Iterator end() const { return Iterator(last); }
  bool empty() const { return first.value >= last.value; }
};

// Those of `count` things.
template <class Id>
IdRange<Id> IdsOf(size_t count) {
  return {Id{0}, Id{static_cast<int32_t>(count)}};
}

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
  void resize(size_t size) { items_.resize(size); }
  // To each of these, or to all.
  void Fill(const IdRange<Id>& range, const T& value) {
    for (const Id id : range) (*this)[id] = value;
  }
  void Fill(const T& value) { std::fill(items_.begin(), items_.end(), value); }

  // All ids.
  IdRange<Id> ids() const { return IdsOf<Id>(items_.size()); }
  // The elements, where their ids do not matter.
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  auto operator<=>(const IdVector&) const = default;
  bool operator==(const IdVector&) const = default;

 private:
  std::vector<T> items_;
};

}  // namespace millrace
