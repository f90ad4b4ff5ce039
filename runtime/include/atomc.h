// The C interface of the atomc runtime. Generated from runtime/src/capi.rs: do not edit.

#ifndef ATOMC_H
#define ATOMC_H

#include <stddef.h>
#include <stdint.h>

// No logits: there are more tokens to come.
#define ATOMC_LOGITS_NONE 0

// Logits after the last token.
#define ATOMC_LOGITS_LAST 1

// Logits after every token.
#define ATOMC_LOGITS_ALL 2

// How a call went. Everything but ATOMC_STATUS_OK leaves a message for atomc_last_error.
typedef enum atomc_status {
  // The call did what it was asked for.
  ATOMC_STATUS_OK = 0,
  // A null pointer, text that is not UTF-8, or an engine that did not open.
  ATOMC_STATUS_INVALID_ARGUMENT = 1,
  // The file is not an artifact that this version can use.
  ATOMC_STATUS_ARTIFACT = 2,
  // The device cannot run the artifact.
  ATOMC_STATUS_DEVICE = 3,
  // The checkpoint is not one for this model.
  ATOMC_STATUS_CHECKPOINT = 4,
  // The step was refused, and no sequence has changed; or its logits are not finite, and the
  // message says where that began.
  ATOMC_STATUS_STEP = 5,
  // The cache has no block left: free a sequence or open with a larger cache.
  ATOMC_STATUS_CACHE_FULL = 6,
  // A fault of atomc itself. Close the engine.
  ATOMC_STATUS_BUG = 7,
} atomc_status;

// An artifact on a device, with its weights, its cache and its sequences. One thread may use it at
// a time. A process that was forked from the one that opened it gets ATOMC_STATUS_DEVICE from
// whatever computes, and may close it; on the host an engine of one thread works in both.
typedef struct atomc_engine atomc_engine;

// How to open an artifact. All zero is the default.
typedef struct atomc_options {
  // "host", or "host:" and a variant of the artifact, or "hip" or "hip:" and a number for an AMD
  // GPU, "cuda" likewise for NVIDIA; null is "host".
  const char *device;
  // Threads, the caller's among them, up to 1024; 0 takes all.
  size_t threads;
  // Tokens that the KV cache holds over all sequences, no more than the device has memory for; 0
  // makes it as large as the longest sequence of the model.
  size_t cache_tokens;
  // Sequences that a model with a recurrent state has room for at once; 0 for 64 at most. Other
  // models have no slots.
  size_t slots;
  // Most snapshots of recurrent states, from which atomc_sequence_fork and atomc_sequence_rewind
  // resume; they lie in slots that no sequence has. 0 for as many as there are slots.
  size_t snapshots;
  // Tokens from one snapshot of a sequence to the next, rounded up to whole blocks; 0 for as
  // many as the largest plan takes. With SIZE_MAX there are none.
  size_t snapshot_tokens;
  // Not 0 if the artifact's draft is to see every step, for atomc_draft.
  uint32_t draft;
} atomc_options;

// New tokens of one sequence.
typedef struct atomc_request {
  // As atomc_sequence_new or atomc_sequence_fork gave it.
  uint64_t sequence;
  // Token ids, which are read before the call returns.
  const uint32_t *tokens;
  // The number of tokens: at least one.
  size_t token_count;
  // ATOMC_LOGITS_NONE, ATOMC_LOGITS_LAST or ATOMC_LOGITS_ALL.
  uint32_t logits;
} atomc_request;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens an artifact. `engine` receives a handle whatever the status, so that atomc_last_error can
// tell why it failed; close it with atomc_close. Naming an artifact asks for its code to run. If
// the variable ATOMC_REQUIRE_SIGNED_BY names a public key, an artifact without a valid signature
// by it is refused as ATOMC_STATUS_ARTIFACT before any of its code is mapped.
//
// Requires:
// `path` is a C string, `options` null or valid, `engine` valid for a write.
enum atomc_status atomc_open(const char *path,
                             const struct atomc_options *options,
                             struct atomc_engine **engine);

// Closes an engine and frees all that it has. Null is allowed.
//
// Requires:
// `engine` came from atomc_open and was not closed.
void atomc_close(struct atomc_engine *engine);

// The message of the last call that failed, valid until the next call on this engine.
//
// Requires:
// `engine` is null or open.
const char *atomc_last_error(const struct atomc_engine *engine);

// The device and the variant of the code on it, e.g. "host:x86-64-v4"; empty if the engine did not
// open.
//
// Requires:
// `engine` is null or open.
const char *atomc_device(const struct atomc_engine *engine);

// Loads the weights from a directory of safetensors, also anew over loaded ones.
//
// Requires:
// `engine` is open, `directory` a C string.
enum atomc_status atomc_load_weights(struct atomc_engine *engine, const char *directory);

// Loads weights, with those of the artifact's draft from a directory of its own.
//
// Requires:
// `engine` is open, `directory` and `draft` are C strings.
enum atomc_status atomc_load_weights_with(struct atomc_engine *engine,
                                          const char *directory,
                                          const char *draft);

// Makes weights up, to measure speed without a checkpoint.
//
// Requires:
// `engine` is open.
enum atomc_status atomc_random_weights(struct atomc_engine *engine, uint64_t seed);

// Size of the vocabulary: numbers in a row of logits. 0 if the engine did not open.
//
// Requires:
// `engine` is null or open.
size_t atomc_vocab(const struct atomc_engine *engine);

// Tokens of the longest sequence. 0 if the engine did not open.
//
// Requires:
// `engine` is null or open.
size_t atomc_max_positions(const struct atomc_engine *engine);

// The tokens that end an answer: `count` receives their number. Null if the engine did not open.
//
// Requires:
// `engine` is null or open, `count` null or valid for a write.
const uint32_t *atomc_stop_tokens(const struct atomc_engine *engine, size_t *count);

// Adds an empty sequence.
//
// Requires:
// `engine` is open, `sequence` valid for a write.
enum atomc_status atomc_sequence_new(struct atomc_engine *engine, uint64_t *sequence);

// Adds a sequence that shares the first tokens of another, without a copy. Only whole blocks of
// the cache can be shared: `shared` receives the number of tokens that the new sequence has; give
// it the later ones again. In a model with recurrent states these are the tokens before a
// snapshot, or all of the other sequence's if all are asked for; then its states are copied.
//
// Requires:
// `engine` is open, `sequence` and `shared` valid for a write.
enum atomc_status atomc_sequence_fork(struct atomc_engine *engine,
                                      uint64_t from,
                                      size_t tokens,
                                      uint64_t *sequence,
                                      size_t *shared);

// Takes a sequence back to its first `tokens`, or to the most before them that it can resume from:
// `left` receives the number that it has then; give it the later ones again. In a model with
// recurrent states these are the tokens before a snapshot. A sequence that a failed step has
// broken is whole again.
//
// Requires:
// `engine` is open, `left` valid for a write.
enum atomc_status atomc_sequence_rewind(struct atomc_engine *engine,
                                        uint64_t sequence,
                                        size_t tokens,
                                        size_t *left);

// Forgets a sequence and frees its part of the cache.
//
// Requires:
// `engine` is open.
enum atomc_status atomc_sequence_free(struct atomc_engine *engine, uint64_t sequence);

// Tokens that a sequence has.
//
// Requires:
// `engine` is open, `tokens` valid for a write.
enum atomc_status atomc_sequence_length(struct atomc_engine *engine,
                                        uint64_t sequence,
                                        size_t *tokens);

// Gives sequences their new tokens and computes the logits that the requests want. Prompts of any
// length the model has, single tokens and both at once are fine; each sequence may appear once.
//
// Requires:
// `engine` is open; `requests` points to `count` requests, and each of their `tokens` to
// `token_count` tokens.
enum atomc_status atomc_step(struct atomc_engine *engine,
                             const struct atomc_request *requests,
                             size_t count);

// Lets the artifact's draft guess up to `count` tokens after a sequence. `tokens` are those that
// were chosen since the last call: one after each of its last computed tokens, the last of them
// new to the engine. `guesses` has room for `count`. `made` receives the number of guesses, which
// is smaller where there is no room, or where the draft lacks a row to go on from. The next step
// of the sequence takes the last token and its guesses with ATOMC_LOGITS_ALL;
// atomc_sequence_rewind takes the wrong ones back.
//
// Requires:
// `engine` is open; `tokens` is valid for `token_count` reads, `guesses` for `count` writes and
// `made` for one.
enum atomc_status atomc_draft(struct atomc_engine *engine,
                              uint64_t sequence,
                              const uint32_t *tokens,
                              size_t token_count,
                              uint32_t *guesses,
                              size_t count,
                              size_t *made);

// The logits of one request of the last step, valid until the next call of atomc_step: `rows`
// receives the first row, `count` the number of rows, `stride` the numbers from one row to the
// next.
//
// Requires:
// `engine` is open; `rows`, `count` and `stride` are valid for a write.
enum atomc_status atomc_logits(struct atomc_engine *engine,
                               size_t request,
                               const float **rows,
                               size_t *count,
                               size_t *stride);

// The likeliest token in the last row of one request of the last step.
//
// Requires:
// `engine` is open, `token` valid for a write.
enum atomc_status atomc_greedy(struct atomc_engine *engine, size_t request, uint32_t *token);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ATOMC_H */
