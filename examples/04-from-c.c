/* Loads an artifact through the C interface and steps two sequences, one of which shares the other's prefix.
 * Build and run: bash examples/04-from-c.sh */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "atomc.h"

static struct atomc_engine *engine;

static void check(enum atomc_status status) {
  if (status != ATOMC_STATUS_OK) {
    fprintf(stderr, "error: %s\n", atomc_last_error(engine));
    exit(1);
  }
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s ARTIFACT WEIGHTS\n", argv[0]);
    return 2;
  }
  check(atomc_open(argv[1], NULL, &engine));
  check(atomc_load_weights(engine, argv[2]));
  printf("%s, %zu tokens in the vocabulary\n", atomc_device(engine), atomc_vocab(engine));

  uint32_t prompt[48];
  for (size_t i = 0; i < 48; i++) prompt[i] = 5 + i;
  uint64_t first, second;
  size_t shared;
  check(atomc_sequence_new(engine, &first));
  struct atomc_request request = {first, prompt, 48, ATOMC_LOGITS_LAST};
  check(atomc_step(engine, &request, 1));
  uint32_t token;
  check(atomc_greedy(engine, 0, &token));

  /* The second sequence begins with the whole blocks of the first; the rest of the prompt it computes itself. */
  check(atomc_sequence_fork(engine, first, 48, &second, &shared));
  struct atomc_request rest = {second, prompt + shared, 48 - shared, ATOMC_LOGITS_LAST};
  check(atomc_step(engine, &rest, 1));
  uint32_t again;
  check(atomc_greedy(engine, 0, &again));
  printf("%zu tokens shared; next token %" PRIu32 " and %" PRIu32 "\n", shared, token, again);

  /* Both go on together, one token each. */
  for (int i = 0; i < 8; i++) {
    struct atomc_request both[2] = {{first, &token, 1, ATOMC_LOGITS_LAST}, {second, &again, 1, ATOMC_LOGITS_LAST}};
    check(atomc_step(engine, both, 2));
    check(atomc_greedy(engine, 0, &token));
    check(atomc_greedy(engine, 1, &again));
    printf("%" PRIu32 " ", token);
    if (token != again) {
      fprintf(stderr, "the sequences differ: %" PRIu32 " and %" PRIu32 "\n", token, again);
      return 1;
    }
  }
  printf("\n");
  atomc_close(engine);
  return 0;
}
