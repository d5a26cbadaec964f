// fmt and xxHash as objects of libmillrace.so, from their headers: Debian has fmt as a shared
// library alone, and a program may bring another version of either. What stands here is what their
// own sources are: all that the headers declare and do not define.
#define XXH_STATIC_LINKING_ONLY
#define XXH_IMPLEMENTATION
#include <fmt/format-inl.h>
#include <sys/random.h>
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
template FMT_API void vformat_to(buffer<char>&, string_view,
                                 basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);

}  // namespace detail
FMT_END_NAMESPACE

// OpenBLAS's archive for one thread keeps a table of buffers without a lock: of two threads that
// multiply at once, each with a run of its own, both could be given the same one. The linker sends
// its callers here (--wrap).
extern "C" {
void* AllocateOfBlas(int place) asm("__real_blas_memory_alloc");
void FreeOfBlas(void* buffer) asm("__real_blas_memory_free");
void* AllocateForBlas(int place) asm("__wrap_blas_memory_alloc");
void FreeForBlas(void* buffer) asm("__wrap_blas_memory_free");
}
namespace {
constinit std::mutex buffers_of_blas;
}
void* AllocateForBlas(int place) {
  const std::lock_guard lock(buffers_of_blas);
  return AllocateOfBlas(place);
}
void FreeForBlas(void* buffer) {
  const std::lock_guard lock(buffers_of_blas);
  FreeOfBlas(buffer);
}

// Debian's archive of the C++ library calls it for std::random_device, and glibc has it from 2.36
// on: with this one the library runs where there is 2.34. Not exported.
extern "C" uint32_t arc4random() {
  uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();  // as glibc's does
  return value;
}
