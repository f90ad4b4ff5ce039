// The kernels of the toy model as "device code" for fake.c, with the parameters of a GPU's kernel: the launch's arguments, the
// step, the workspace. Grids may be larger than a step needs.
#include <stdint.h>
typedef struct { int64_t tokens, rows; } step;
typedef struct { const int32_t *positions, *sequences, *tables; int64_t stride; const int32_t *tiles; int64_t tile_count, block_stride; } batch;

static int64_t place(const batch *b, int64_t token, int64_t position) {
    return b->tables[b->sequences[token] * b->stride + position / BLOCK] * (b->block_stride / 4) + position % BLOCK;
}

// The workspace is zero before and after every launch; a kernel that finds something else does nothing, which tests see.
static int borrow(uint64_t workspace) {
    int32_t *counter = (int32_t *)workspace;
    if (*counter != 0) return 0;
    *counter = 1;
    *counter -= 1;
    return 1;
}

int scatter_parameters = 6;
void scatter(uint64_t *p, unsigned group, unsigned threads) {
    const int32_t *ids = (void *)p[0];
    const batch *b = (void *)p[1];
    int32_t *k = (void *)p[2], *v = (void *)p[3];
    const step *s = (void *)p[4];
    if (!borrow(p[5])) return;
    for (int64_t t = group * 4; t < (group + 1) * 4 && t < s->tokens; t++) {
        k[place(b, t, b->positions[t])] = ids[t] + 1;
        v[place(b, t, b->positions[t])] = b->positions[t] + 1;
    }
}

int attend_parameters = 7;
void attend(uint64_t *p, unsigned group, unsigned threads) {
    const batch *b = (void *)p[0];
    const int32_t *lengths = (void *)p[1], *k = (void *)p[2], *v = (void *)p[3];
    int64_t *hidden = (void *)p[4];
    if (!borrow(p[6]) || group >= b->tile_count) return;
    for (int64_t t = b->tiles[2 * group], last = t + b->tiles[2 * group + 1]; t < last; t++) {
        hidden[t] = 0;
        for (int64_t i = 0; i <= b->positions[t] && i < lengths[t]; i++)
            hidden[t] += (int64_t)k[place(b, t, i)] * v[place(b, t, i)];
    }
}

int head_parameters = 7;
void head(uint64_t *p, unsigned group, unsigned threads) {
    const int32_t *rows = (void *)p[0];
    const int64_t *hidden = (void *)p[1];
    const float *bias = (void *)p[2];
    float *logits = (void *)p[3];
    int32_t *pick = (int32_t *)p[4] + group * PICK;
    const step *s = (void *)p[5];
    if (!borrow(p[6]) || group >= s->rows) return;
    float *row = logits + group * (VOCAB + 3), most = -__builtin_inff();
    *pick = 0;
    for (int64_t i = 0; i < VOCAB; i++) {
        int64_t far = i - hidden[rows[group]] % VOCAB;
        row[i] = bias[i] - (far < 0 ? -far : far);
        if (row[i] > most) { most = row[i]; *pick = i; }
    }
}
