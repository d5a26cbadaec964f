// What sources under ASan call, for programs that are not libFuzzer's: nothing. Objects are the
// same for both (--config=asan, .bazelrc). libasan defines what else g++ calls of this kind. Weak,
// since libFuzzer defines the first as well.
extern "C" {
__attribute__((weak)) void __sanitizer_cov_trace_pc() {}
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
}
