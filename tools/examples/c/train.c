/* A tiny Llama learns to count by a stride that each sequence has of its own; then its weights are
 * read where they lie. */
#include <millrace.h>
#include <millrace_dlpack.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 16, SEQ_LEN = 16, VOCAB = 61 };

static const char config[] =
    "{\"model\": {\"family\": \"llama\", \"layers\": 2, \"d_model\": 32, \"heads\": 2, \"ffn\": 64,"
    "             \"seq_len\": 16, \"vocab\": 61},"
    " \"train\": {\"steps\": 60, \"micro_batch\": 8, \"accumulate\": 2},"
    " \"optimizer\": {\"lr\": 0.01}}";

static void check(mr_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s\n", mr_status_name(mr_status_code(status)), mr_status_message(status));
  mr_status_free(status);
  exit(1);
}

static void say(void* user, int32_t level, const char* text) {
  (void)user;
  if (level >= MR_LOG_WARNING) fprintf(stderr, "millrace: %s\n", text);
}

static void fill(int32_t* tokens, int step) {
  for (int row = 0; row < ROWS; ++row)
    for (int i = 0; i <= SEQ_LEN; ++i)
      tokens[row * (SEQ_LEN + 1) + i] = (7 * step + 13 * row + i * (1 + row % 5)) % VOCAB;
}

/* The sum of a matrix of any strides. */
static double sum(const DLTensor* matrix) {
  double total = 0;
  for (int64_t i = 0; i < matrix->shape[0]; ++i)
    for (int64_t j = 0; j < matrix->shape[1]; ++j)
      total += ((const float*)matrix->data)[i * matrix->strides[0] + j * matrix->strides[1]];
  return total;
}

int main(void) {
  mr_run* run;
  check(mr_run_create(&(mr_run_options){.size = sizeof(mr_run_options), .config = config, .log = say},
                      &run));
  check(mr_init(run));

  int32_t tokens[ROWS * (SEQ_LEN + 1)];
  mr_step_result result = {.size = sizeof result};
  double first = 0;
  for (int step = 0; step < 60; ++step) {
    fill(tokens, step);
    check(mr_step(run, &(mr_batch){.size = sizeof(mr_batch), .tokens = tokens, .sequences = ROWS},
                  &result));
    if (step == 0) first = result.loss;
  }
  printf("Millrace %s: loss %.4f -> %.4f in %d steps\n", mr_version(), first, result.loss,
         (int)result.step);

  struct DLManagedTensorVersioned* lent;
  uint64_t version;
  check(mr_weights_borrow(run, "lm_head.weight", &lent, &version));
  printf("lm_head.weight [%d, %d] of version %d: sum %.6f\n", (int)lent->dl_tensor.shape[0],
         (int)lent->dl_tensor.shape[1], (int)version, sum(&lent->dl_tensor));
  lent->deleter(lent);

  check(mr_run_destroy(run));
  return result.loss < first / 2 ? 0 : 1;
}
