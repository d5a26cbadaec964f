/* A program in C11 that reads all of an answer, and trains on rows of an Arrow stream of its own. */
#include <millrace.h>
#include <millrace_arrow.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 4, kRowTokens = 9, kTop = 3, kAnswer = 7 };

_Static_assert(sizeof(struct ArrowSchema) == 72 && offsetof(struct ArrowSchema, release) == 56, "Arrow's layout");
_Static_assert(sizeof(struct ArrowArray) == 80 && offsetof(struct ArrowArray, buffers) == 40, "Arrow's layout");
_Static_assert(sizeof(struct ArrowArrayStream) == 40 && offsetof(struct ArrowArrayStream, release) == 24, "Arrow's layout");

static void check(mr_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", mr_status_message(status));
  exit(mr_status_code(status));
}

static void require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

/* One record batch of rows, static: whoever is given something gives it back. */
static int32_t tokens[kRows * kRowTokens];
static int given, live;

static void release_schema(struct ArrowSchema* schema) {
  schema->release = NULL;
  --live;
}
static void release_array(struct ArrowArray* array) {
  array->release = NULL;
  --live;
}
static void release_stream(struct ArrowArrayStream* stream) {
  stream->release = NULL;
  --live;
}
static const char* last_error(struct ArrowArrayStream* stream) { return stream == NULL ? "no stream" : NULL; }

static int get_schema(struct ArrowArrayStream* stream, struct ArrowSchema* out) {
  static struct ArrowSchema value, list;
  static struct ArrowSchema *values[] = {&value}, *lists[] = {&list};
  (void)stream;
  value = (struct ArrowSchema){.format = "i", .name = "item", .release = release_schema};
  list = (struct ArrowSchema){.format = "+w:9", .name = "tokens", .n_children = 1, .children = values, .release = release_schema};
  *out = (struct ArrowSchema){.format = "+s", .name = "", .n_children = 1, .children = lists, .release = release_schema};
  ++live;
  return 0;
}

static int get_next(struct ArrowArrayStream* stream, struct ArrowArray* out) {
  static struct ArrowArray value, list;
  static struct ArrowArray *values[] = {&value}, *lists[] = {&list};
  static const void *data[] = {NULL, tokens}, *all[] = {NULL};
  (void)stream;
  *out = (struct ArrowArray){.release = NULL};
  if (given++ > 0) return 0;
  value = (struct ArrowArray){.length = kRows * kRowTokens, .n_buffers = 2, .buffers = data, .release = release_array};
  list = (struct ArrowArray){.length = kRows, .n_buffers = 1, .buffers = all, .n_children = 1, .children = values, .release = release_array};
  *out = (struct ArrowArray){.length = kRows, .n_buffers = 1, .buffers = all, .n_children = 1, .children = lists, .release = release_array};
  ++live;
  return 0;
}

int main(void) {
  mr_run_options options = {.size = sizeof options, .use_inference = 1};
  options.config = "{\"model\": {\"family\": \"llama\", \"layers\": 2, \"d_model\": 20, \"heads\": 2, \"ffn\": 28, \"seq_len\": 8, \"vocab\": 37},"
                   " \"train\": {\"steps\": 20, \"micro_batch\": 4, \"accumulate\": 1}}";
  mr_run* run;
  check(mr_run_create(&options, &run));
  check(mr_init(run));

  const int32_t prompt[] = {5};
  mr_request request = {.size = sizeof request, .prompt = prompt, .prompt_tokens = 1, .max_tokens = kAnswer, .top_logprobs = kTop};
  const mr_request* const requests[] = {&request};
  mr_answers* answers;
  check(mr_generate(run, requests, 1, &answers));
  mr_answer answer = {.size = sizeof answer};
  check(mr_answers_get(answers, 0, &answer));
  require(answer.count == kAnswer && answer.top == kTop, "seven tokens with the three likeliest");
  for (int t = 0; t < kAnswer; ++t) {
    require(answer.top_tokens[t * kTop] == answer.tokens[t], "a greedy answer has the likeliest token");
    require(memcmp(&answer.top_logprobs[t * kTop], &answer.logprobs[t], sizeof(float)) == 0, "with its bits");
    require(answer.top_logprobs[t * kTop] >= answer.top_logprobs[t * kTop + 2], "likeliest first");
  }
  mr_answers_free(answers);

  for (int i = 0; i < kRows * kRowTokens; ++i) tokens[i] = i * 5 % 37;
  mr_batch own = {.size = sizeof own, .tokens = tokens, .sequences = kRows};
  mr_step_result first = {.size = sizeof first}, second = {.size = sizeof second};
  check(mr_step(run, &own, &first));
  check(mr_init(run));
  struct ArrowArrayStream stream = {get_schema, get_next, last_error, release_stream, NULL};
  mr_rows* rows;
  ++live;
  check(mr_rows_open(&stream, kRowTokens, &rows));
  require(stream.release == NULL, "the stream is the library's");
  mr_batch batch = {.size = sizeof batch};
  check(mr_rows_next(rows, kRows, &batch));
  require(batch.sequences == kRows && batch.weights == NULL, "four rows of tokens");
  check(mr_step(run, &batch, &second));
  require(memcmp(&first.loss, &second.loss, sizeof(double)) == 0, "a loss with the same bits");
  check(mr_rows_next(rows, kRows, &batch));
  require(batch.sequences == 0, "no more rows");
  mr_rows_free(rows);
  require(live == 0, "all was given back");
  check(mr_run_destroy(run));
  printf("%d tokens, loss %.4f\n", kAnswer, second.loss);
  return 0;
}
