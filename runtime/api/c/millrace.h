/* Millrace for other programs: training runs behind a C interface. README.md beside this header in
 * the sources has an example, the rules, and what each backend can do today.
 *
 * Calls     Each call that can fail returns a status: NULL is success; anything else is the
 *           caller's, to be freed with mr_status_free. A call that fails leaves its outputs as they
 *           were, but an *out that is a pointer, which it sets to NULL. No call exits, prints,
 *           installs a signal handler or throws. README.md has the environment variables that are
 *           read.
 * Structs   Each begins with its size: set it to sizeof, or a larger library would write past the
 *           end of what an older program gave. A shorter struct than the library's stands for zeros
 *           behind its end; a longer one, of a newer header, is refused. Zero is every field's
 *           default. Strings are UTF-8 and end with a zero byte.
 * Handles   Of runs, answers, tokenizers and rows: one that was destroyed or freed, or never was
 *           one, is refused for as long as the process lives (MR_INVALID_ARGUMENT); NULL, too. What
 *           returns no status does nothing then. A mr_status is memory, and freed once.
 * Threads   Any thread may call, and runs are independent. One run serves one call at a time:
 *           another one meanwhile gets MR_BUSY. Callbacks come on the thread of the call, but
 *           on_stall.
 * Ranks     Calls marked "collective" are made by every rank of the run, in one order, with the
 *           same arguments unless said otherwise. A rank that refuses its arguments makes all ranks
 *           refuse, by name and with its code; so do ranks that are in different calls.
 * Versions  Until 1.0 a minor version may break the interface, and is part of the library's SONAME.
 */
#ifndef MILLRACE_H_
#define MILLRACE_H_

#include <stddef.h>
#include <stdint.h>

#define MR_VERSION_MAJOR 0
#define MR_VERSION_MINOR 1
#define MR_VERSION_PATCH 0

#if defined(__GNUC__)
#define MR_API __attribute__((visibility("default")))
#else
#define MR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mr_run mr_run;
typedef struct mr_status mr_status;
struct DLManagedTensorVersioned; /* DLPack 1.x; millrace_dlpack.h declares it */
struct ArrowArrayStream;         /* Arrow's; millrace_arrow.h declares it */

/* Of a status. Up to 5 and from 70 on they are the exit codes of the program `millrace`. */
enum {
  MR_OK = 0,
  MR_CONFIG = 2,            /* the configuration; mr_status_pointer names the key */
  MR_DATA = 3,              /* data or a Hugging Face folder that cannot be read */
  MR_CHECKPOINT = 4,        /* no checkpoint, a damaged one, or one that is in the way */
  MR_DOES_NOT_FIT = 5,      /* the plan exceeds its budget, or the machine's memory */
  MR_RELEASED = 63,         /* memory that the call needs is released: mr_acquire comes first */
  MR_INVALID_ARGUMENT = 64, /* of this call; nothing has changed */
  MR_UNSUPPORTED = 65,      /* this library cannot do that; nothing has changed */
  MR_BORROWED = 66,         /* weights are lent, and the call would write them */
  MR_BUSY = 67,             /* the run is in another call */
  MR_RUN_FAILED = 68,       /* an earlier error has left the run unusable: destroy it */
  MR_CALLBACK = 69,         /* a callback failed without a status of its own */
  MR_INTERNAL = 70,         /* a bug of the library */
  MR_TIMEOUT = 71,          /* a rank made no progress in time */
  MR_PEER_LOST = 72,        /* another rank has gone */
  MR_NON_FINITE = 73,
  MR_IO = 74,
  MR_DEVICE = 77
};

/* Of a log message, and of run.log_level, which decides what is said. */
enum { MR_LOG_TRACE = 0, MR_LOG_DEBUG = 1, MR_LOG_INFO = 2, MR_LOG_WARNING = 3, MR_LOG_ERROR = 4 };

/* The library that is loaded: "0.1.0", and 1000000 * major + 1000 * minor + patch. */
MR_API const char* mr_version(void);
MR_API int32_t mr_version_number(void);

/* A copy of both texts; NULL is "". For callbacks, whose failure it is. Never NULL; a code outside
 * the list above becomes MR_CALLBACK. */
MR_API mr_status* mr_status_new(int32_t code, const char* message);
MR_API int32_t mr_status_code(const mr_status* status);        /* NULL: MR_OK */
MR_API const char* mr_status_name(int32_t code);               /* "config"; "unknown" */
MR_API const char* mr_status_message(const mr_status* status); /* lives as long; NULL: "" */
/* JSON pointer of the first key of the configuration that is wrong ("/optimizer/lr"), where the
 * error is about one; else "". Lives as long. */
MR_API const char* mr_status_pointer(const mr_status* status);
MR_API void mr_status_free(mr_status* status); /* NULL: nothing */

/* JSON Schema (draft 7) of the configuration. Lives as long as the process. */
MR_API const char* mr_config_schema(void);

/* Ranks of MPI: of Open MPI, opened when it is asked for. The library is not linked with it. */
typedef struct mr_mpi {
  size_t size;
  /* The address of the MPI_Comm whose ranks are the run's; used while mr_run_create runs. NULL:
   * MPI_COMM_WORLD. Where MPI has not begun, as under mpirun in a program without it, the library
   * begins it, and ends it when the process ends. */
  const void* comm;
  const char* library; /* a file for dlopen; NULL: libmpi.so.40, which may be loaded already */
} mr_mpi;

typedef struct mr_run_options {
  size_t size;
  const char* config; /* JSON text, as of a file that `millrace train` takes */
  int32_t rank;       /* of this call */
  int32_t world;      /* ranks; 0: one */
  int32_t device;     /* among those of its kind that this process sees; of the CPU there is one.
                         Several ranks of a host take its GPUs in their order: 0 */
  int32_t use_data;   /* 1: open the configuration's data, for calls without a batch */
  void* user;         /* given to each callback */
  /* What the run has to say; NULL: nothing is said. */
  void (*log)(void* user, int32_t level, const char* text);
  /* How ranks find each other, for world above 1: an all-gather over all ranks. `buffer` has world
   * pieces of `each` bytes, of which this rank's is filled in; on return all are. NULL is success;
   * a status ends mr_run_create with its code and message, and is freed by the library. */
  mr_status* (*exchange)(void* user, void* buffer, size_t each);
  /* Called on a thread of the library's own when no rank has made progress for
   * execution.watchdog_s, with who holds the job up: the calls hang, and only the program can end
   * it. NULL: nobody watches. */
  void (*on_stall)(void* user, const char* verdict);
  int32_t use_inference; /* 1: plan what section inference says too, for mr_generate and mr_score */
  /* Not NULL: MPI gives rank and world, and is how ranks find each other. Then rank, world and
   * exchange are 0 and NULL. */
  const mr_mpi* mpi;
} mr_run_options;

/* Plans, checks and allocates; weights are not set yet. Collective. */
MR_API mr_status* mr_run_create(const mr_run_options* options, mr_run** out);
/* NULL: nothing. Lent tensors stay valid, and with them the run's memory, until they are deleted.
 * The log is not called any more. MR_BUSY from within a callback. */
MR_API mr_status* mr_run_destroy(mr_run* run);

typedef struct mr_info {
  size_t size;
  int64_t parameters;      /* of the model, all ranks */
  int64_t step;            /* steps done */
  int64_t arena_bytes;     /* of this rank, all that steps use */
  uint64_t weight_version; /* rises whenever weights are written; 0: not set yet */
  int64_t vocab, seq_len;
  int64_t step_sequences; /* rows of a batch of mr_step, on each rank */
  int64_t eval_sequences; /* rows of a batch of mr_evaluate are a multiple of it */
  int32_t rank, world;
  int64_t lent;           /* tensors that were borrowed and not deleted */
  int64_t released_bytes; /* of the arena, without memory until mr_acquire */
} mr_info;

MR_API mr_status* mr_run_info(mr_run* run, mr_info* info);
/* Every key of the configuration with its value, as JSON text. Lives as long as the run. */
MR_API mr_status* mr_run_config(mr_run* run, const char** json);

/* All of these write weights, moments and the step, and are collective. A failure leaves the run
 * without weights, until one of them succeeds; but where mr_load finds no sound checkpoint of this
 * model, all is as it was. */
MR_API mr_status* mr_init(mr_run* run); /* model.init_from, or fresh ones by train.seed */
/* The newest checkpoint of a run folder, saved by any number of ranks; NULL: run.dir. */
MR_API mr_status* mr_load(mr_run* run, const char* run_dir);
/* Weights of a Hugging Face folder (config.json and safetensors), whose model must be the
 * configuration's. Moments and the step begin at zero. */
MR_API mr_status* mr_import(mr_run* run, const char* folder);

/* A checkpoint in run_dir/checkpoints, for mr_load and `millrace train`; keeps the checkpoint.keep
 * of the greatest steps. NULL: run.dir. Published whole or not at all; what the last save or load
 * of this very state has left there is success. MR_CHECKPOINT: another one of this step or a later
 * one is in the way (mr_init and mr_import begin at step 0). MR_CONFIG: those there are of another
 * model. Collective. */
MR_API mr_status* mr_save(mr_run* run, const char* run_dir);
/* config.json and safetensors for transformers. The folder is new or empty. Collective. */
MR_API mr_status* mr_export(mr_run* run, const char* folder);

typedef struct mr_batch {
  size_t size;
  const int32_t* tokens; /* [sequences, seq_len + 1], row-major: a row's targets are its tokens from
                            the second on. Of this rank; ranks along tensor and context give the
                            same. NULL: the configuration's data (use_data) */
  int64_t sequences;
  /* Of each target, [sequences, seq_len]; each is given where the configuration asks for it, else
   * NULL. Weights (train.loss_weights): a loss is the weighted sum over that of all weights, of
   * blocks that predict further (model.mtp) over that of their own targets; 0 masks a target. The
   * others: train.loss policy_gradient, the last one where train.policy.kl is not 0. */
  const float* weights;
  const float* advantages;
  const float* old_logprobs;
  const float* reference_logprobs;
} mr_batch;

/* Rows of batches out of a stream of Arrow's, as pyarrow, polars and duckdb give it. They belong to
 * no run. Any thread; a call at a time. */
typedef struct mr_rows mr_rows;

/* Column "tokens" has lists (list, large_list or fixed_size_list) of integers, row_tokens each:
 * seq_len + 1, at least 2. Columns "weights", "advantages", "old_logprobs" and
 * "reference_logprobs", those that there are, have lists of float or double, which is rounded, one
 * less each. Other columns are not looked at. On success the stream is the library's: it is moved,
 * and its release is NULL. Else it is still the caller's. MR_DATA: columns of other types, or the
 * stream fails. */
MR_API mr_status* mr_rows_open(struct ArrowArrayStream* stream, int64_t row_tokens, mr_rows** out);
/* The next `sequences` rows, at least 1, of however many record batches; fewer where the stream
 * ends, and then 0. The batch's arrays live until the next call for these rows; where the stream
 * has no such column, NULL. MR_DATA: a null, a list of another length, a token beyond 32 bits or a
 * finite double beyond float, named by column and row, or the stream fails. MR_DOES_NOT_FIT: no
 * memory for the batch. Rows are lost then, and each later call says it again. */
MR_API mr_status* mr_rows_next(mr_rows* rows, int64_t sequences, mr_batch* batch);
MR_API void mr_rows_free(mr_rows* rows); /* NULL: nothing */

typedef struct mr_step_result {
  size_t size;
  int64_t step; /* steps done, this one included */
  double loss;  /* mean over the targets of all ranks, before the update */
  double grad_norm;
  double lr;
  int64_t targets; /* of all ranks */
  uint64_t weight_version;
  int32_t applied; /* 0: loss or gradients were not finite, and no weight has changed */
  /* Of a policy gradient, means over the targets of all ranks that count; NaN where there
   * are none, and of another loss. How far the policy has moved from the one that has sampled. */
  double clip_fraction; /* of targets whose ratio was clipped, so that they have no gradient */
  double ratio;         /* of probabilities: this policy's to old_logprobs' */
  double kl; /* divergence in nats: from reference_logprobs, or where there are none from the old */
} mr_step_result;

/* One training step: forward, backward, update. batch NULL: the configuration's data. result may be
 * NULL. Each rank gives its own rows. Collective. */
MR_API mr_status* mr_step(mr_run* run, const mr_batch* batch, mr_step_result* result);

typedef struct mr_evaluation {
  size_t size;
  double loss; /* mean over the targets of all ranks */
  int64_t targets;
} mr_evaluation;

/* Held-out cross entropy, without an update and without weights: of a batch the tokens alone. batch
 * NULL: data.eval_batches of the configuration's data. Each rank gives as many rows. Collective. */
MR_API mr_status* mr_evaluate(mr_run* run, const mr_batch* batch, mr_evaluation* result);

/* The log-probability of each target of a batch, by the training forward with its bits: `logprobs`
 * has [sequences, seq_len] places, `count` of them. Needs use_inference. Each rank gives as many
 * rows. Collective. */
MR_API mr_status* mr_score(mr_run* run, const mr_batch* batch, double* logprobs, int64_t count);
/* The same bits, and in the place of each target the token that the model finds likeliest, the
 * lowest of equals: where it is the target's, a greedy answer would have had it. -1: a logit is not
 * finite. */
MR_API mr_status* mr_score_likeliest(mr_run* run, const mr_batch* batch, double* logprobs,
                                     int32_t* likeliest, int64_t count);

typedef struct mr_request {
  size_t size;
  const int32_t* prompt;
  int64_t prompt_tokens;
  int64_t max_tokens; /* of each answer */
  int64_t samples;    /* answers; 0: one; at most 1024 */
  uint64_t seed;
  float temperature; /* 0: the likeliest token */
  float top_p;       /* 0: 1 */
  float min_p;
  int32_t top_k;              /* 0: all */
  const int32_t* stop_tokens; /* an answer ends with the first of these */
  int64_t stop_count;
  /* Of so many likeliest tokens, in the place of each token of an answer, the log-probabilities are
   * wanted, too: at most 64, and at most the vocabulary. */
  int64_t top_logprobs;
} mr_request;

/* MR_FINISH_NOT_YET: of an event, whose answer goes on. */
enum { MR_FINISH_NOT_YET = -1, MR_FINISH_STOP = 0, MR_FINISH_LENGTH = 1, MR_FINISH_CANCELLED = 2 };

typedef struct mr_answer {
  size_t size;
  int64_t request, sample;
  const int32_t* tokens; /* with what ended it; lives as the mr_answers */
  const float* logprobs; /* of each, by the model's logits before temperature and cuts */
  int64_t count;
  int32_t finish;
  uint64_t weight_version; /* that drew it */
  /* Of a request with top_logprobs, which `top` is: in the place of each token the likeliest ones,
   * [count, top], row-major, the likeliest first and the lowest of equals; and the log-probability
   * of each, of the logits that `logprobs` are of. Live as the mr_answers. Else 0 and NULL. */
  int64_t top;
  const int32_t* top_tokens;
  const float* top_logprobs;
} mr_answer;

typedef struct mr_answers mr_answers;

/* Answers to `count` requests, in order, batched over the slots and pages of section inference. A
 * request that cannot be is MR_INVALID_ARGUMENT, and none is answered. Each rank has requests of
 * its own, or none; ranks along parallel.tensor have the same. Steps and evaluations go on as if it
 * had not been. Collective. */
MR_API mr_status* mr_generate(mr_run* run, const mr_request* const* requests, int64_t count,
                              mr_answers** out);
MR_API int64_t mr_answers_count(const mr_answers* answers); /* of all samples; no handle: 0 */
MR_API mr_status* mr_answers_get(const mr_answers* answers, int64_t index, mr_answer* answer);
MR_API void mr_answers_free(mr_answers* answers); /* NULL: nothing */

/* A tokenizer.json (byte-level BPE: GPT-2, Llama 3, Qwen and the like), with the ids of PyPI's
 * tokenizers. It belongs to no run. Any thread; a text at a time. */
typedef struct mr_tokenizer mr_tokenizer;

/* Of mr_tokenizer_encode. MR_TEXT_PLAIN: what reads like an added token ("<|endoftext|>") is text.
 * MR_TEXT_ALONE: without the tokens that the tokenizer's template puts around a text. */
enum { MR_TEXT_PLAIN = 1, MR_TEXT_ALONE = 2 };

/* `path` is the file, or a folder that has it. */
MR_API mr_status* mr_tokenizer_open(const char* path, mr_tokenizer** out);
/* NULL: nothing. Calls that have it go on with it. */
MR_API void mr_tokenizer_free(mr_tokenizer* tokenizer);
/* The ids of `bytes` bytes of UTF-8: the first `room` of them to `tokens`; *count is how many there
 * are, which may be more. MR_DATA: not UTF-8. */
MR_API mr_status* mr_tokenizer_encode(mr_tokenizer* tokenizer, const char* text, int64_t bytes,
                                      int32_t flags, int32_t* tokens, int64_t room, int64_t* count);
/* The text of `count` ids, less special tokens where `skip_special` is 1: its first `room` bytes to
 * `text`, without a zero byte behind them; *bytes is how many there are. A character that is cut
 * off by either end is not whole. Ids that no token has stand for nothing. */
MR_API mr_status* mr_tokenizer_decode(mr_tokenizer* tokenizer, const int32_t* tokens, int64_t count,
                                      int32_t skip_special, char* text, int64_t room,
                                      int64_t* bytes);
/* The id of an added token, as "<|endoftext|>"; -1: there is none. */
MR_API mr_status* mr_tokenizer_find(mr_tokenizer* tokenizer, const char* token, int32_t* id);

typedef struct mr_event {
  size_t size;
  int64_t request, sample;
  int64_t index; /* of the token in its answer; where there is none, the answer's length */
  int32_t token; /* -1: none, the sample was cancelled */
  float logprob; /* of it, as mr_answer has it */
  int32_t finish;
  int32_t cancel; /* for the callback to set: 1 ends this sample, whose last event is to come */
  uint64_t weight_version; /* that drew it */
  /* What can be shown by now and was not before, in whole characters, without special and stop
   * tokens; lives as the callback's call. NULL without a tokenizer. */
  const char* text;
  int64_t text_bytes;
  /* [top], as a row of mr_answer's; live as the callback's call. Without a token 0 and NULL. */
  int64_t top;
  const int32_t* top_tokens;
  const float* top_logprobs;
} mr_event;

typedef struct mr_stream_options {
  size_t size;
  void* user; /* given to on_event */
  /* Called for each token as it comes, in the order in which they come: those of one sample are in
   * order, samples mix. Of each sample one event is its last, with `finish`. A status, which the
   * library frees, ends all of this rank's requests, and mr_stream returns its code and message. */
  mr_status* (*on_event)(void* user, mr_event* event);
  mr_tokenizer* tokenizer; /* for the events' text; NULL: tokens alone */
} mr_stream_options;

/* mr_generate, token by token: the same tokens with the same bits. Other calls of the run are
 * MR_BUSY until it returns. A callback that fails ends its own rank's requests. Collective. */
MR_API mr_status* mr_stream(mr_run* run, const mr_request* const* requests, int64_t count,
                            const mr_stream_options* options);

/* Parts of the arena, for mr_release. */
enum {
  /* All but the states of the run: gathered weights and caches of inference, and the activations,
   * gradients and buffers of steps that share their bytes. */
  MR_PART_ERA = 1,
  MR_PART_COPIES = 2, /* copies of weights in the dtype of compute, and gathered ones */
  MR_PART_ALL = 3     /* weights, moments and the rest go to host memory meanwhile */
};

typedef struct mr_memory {
  size_t size;
  int64_t bytes;      /* of the device, that went or came: whole pages, of this rank */
  int64_t host_bytes; /* of states, that lie in host memory between the two */
  double seconds;
} mr_memory;

/* Gives physical memory back to the device, or the system, while nothing runs; addresses and
 * recorded steps stay. Until mr_acquire calls that need it are MR_RELEASED: those that compute, and
 * with MR_PART_ALL those that read or write weights. Afterwards all bits are what they would have
 * been. Refused, and nothing has changed: MR_RELEASED where some is released already, MR_BORROWED
 * for MR_PART_ALL while weights are lent, MR_UNSUPPORTED where others know the memory (a run of
 * several GPUs). MR_DOES_NOT_FIT: no host memory for the states; nothing has changed. result may be
 * NULL. Collective, `part` the same. */
MR_API mr_status* mr_release(mr_run* run, int32_t part, mr_memory* result);
/* MR_DOES_NOT_FIT: the memory is not there, on one of the ranks, and all is released as before: it
 * may be tried again. Collective. */
MR_API mr_status* mr_acquire(mr_run* run, mr_memory* result);

/* Master weights under the names of mr_export, f32, in place: nothing is copied. */
MR_API mr_status* mr_weights_count(mr_run* run, int64_t* count);
MR_API mr_status* mr_weights_name(mr_run* run, int64_t index, const char** name); /* as the run */
/* A read-only tensor with strides, and the weight version that it shows; version may be NULL. Until
 * its deleter is called (any thread), calls that write weights fail with MR_BORROWED. On a GPU any
 * stream may read it at once, and the deleter may be called before the reads are done: whatever
 * writes the weights next waits for them. MR_UNSUPPORTED where a rank does not hold the whole
 * tensor. */
MR_API mr_status* mr_weights_borrow(mr_run* run, const char* name,
                                    struct DLManagedTensorVersioned** out, uint64_t* version);

typedef struct mr_shared_weights {
  size_t size;
  int32_t fd;       /* of the memory; the caller's, who closes it */
  int32_t on_gpu;   /* 0: the host's, for mmap with MAP_PRIVATE; 1: of the run's GPU, for
                       cuMemImportFromShareableHandle (POSIX file descriptor) */
  int64_t bytes;    /* to be mapped */
  uint64_t version; /* of the weights, as mr_info has it */
  /* JSON: version, bytes, the GPU's UUID, and of each tensor dtype, shape and offset in bytes.
   * Lives until the run's next mr_weights_export, or its end. */
  const char* manifest;
} mr_shared_weights;

/* The master weights of now, whole, f32, as mr_export names and stores them, in a memory of their
 * own for other processes of this host, which get the descriptor over a Unix socket (SCM_RIGHTS).
 * What lies there is of one version and never changes: steps go on, later weights are another
 * export. The memory goes with its last descriptor and its last mapping, and may outlive the run. A
 * rank that gives NULL for `out` takes part and gets nothing. MR_DOES_NOT_FIT: there is no room,
 * on one of the ranks. Collective. */
MR_API mr_status* mr_weights_export(mr_run* run, mr_shared_weights* out);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_H_ */
