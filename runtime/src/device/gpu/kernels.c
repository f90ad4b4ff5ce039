// The kernels of the toy model as "device code" for fake.c, with the parameters of a GPU's kernel:
// the launch's arguments, the step, the workspace. Grids may be larger than a step needs.
#include <stdint.h>
#include <string.h>
typedef struct { int64_t tokens, rows; } step;
typedef struct { const int32_t *positions, *sequences, *tables; int64_t stride; const int32_t *tiles; int64_t tile_count, block_stride; } batch;

static int64_t place(const batch *b, int64_t token, int64_t position) {
    return b->tables[b->sequences[token] * b->stride + position / BLOCK] * (b->block_stride / 4) + position % BLOCK;
}

// The workspace is zero before and after every launch; a kernel that finds something else does
// nothing, which tests see.
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

// A recurrent state in a slot of its own, added to the hidden value.
int advance_parameters = 5;
void advance(uint64_t *p, unsigned group, unsigned threads) {
    int64_t *hidden = (void *)p[0];
    const batch *b = (void *)p[1];
    const step *s = (void *)p[3];
    if (!borrow(p[4]) || group) return;
    for (int64_t t = 0; t < s->tokens; t++) {
        int64_t *state = (int64_t *)((char *)p[2] + b->tables[b->sequences[t] * b->stride] * b->block_stride);
        if (b->positions[t] == 0) *state = 0;
        *state = (5 * *state + hidden[t]) % 1000003;
        hidden[t] += *state;
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

// What `abi::Prepare` asks for.
int atomc_prepare_parameters = 15;
void atomc_prepare(uint64_t *p, unsigned group, unsigned threads) {
    const int32_t *ids = (void *)p[0], *starts = (void *)p[2], *lengths = (void *)p[3];
    const int64_t *from = (void *)p[1];
    step *s = (void *)p[5];
    batch *b = (void *)p[6];
    int32_t *to_ids = (void *)p[7], *to_lengths = (void *)p[8], *positions = (void *)b->positions;
    int32_t *sequences = (void *)b->sequences, *tiles = (void *)b->tiles;
    int64_t count = p[11], tokens = p[12];
    if (group >= 8) {
        uint64_t sequence = (group - 8) % count, *layers = (void *)p[9];
        int64_t length = lengths[sequence], first = length / BLOCK * BLOCK;
        int64_t before = length - (starts[sequence + 1] - starts[sequence]);
        if (first == length || first < before) return;
        int32_t page = ((int32_t *)p[4])[sequence * p[10] + first / BLOCK];
        memset((char *)layers[(group - 8) / count] + page * b->block_stride + p[13], 0, p[14]);
    }
    if (group) return;
    s->tokens = starts[count];
    b->tables = (void *)p[4];
    b->stride = p[10];
    b->tile_count = tokens / 32 + count;
    for (int64_t i = 0; i < 2 * b->tile_count; i++) tiles[i] = 0;
    for (int64_t t = starts[count]; t < tokens + 64; t++) to_ids[t] = to_lengths[t] = positions[t] = sequences[t] = 0;
    for (int64_t q = 0; q < count; q++)
        for (int64_t t = starts[q]; t < starts[q + 1]; t++) {
            int64_t inside = t - starts[q], tile = starts[q] / 32 + q + inside / 32;
            to_ids[t] = ids[t];
            positions[t] = from[t];
            to_lengths[t] = lengths[q];
            sequences[t] = q;
            if (inside % 32 == 0) tiles[2 * tile] = t;
            tiles[2 * tile + 1] = inside % 32 + 1;
        }
}

// A number of f32 or bf16 and an offset, in its own type: to nearest, ties to even.
static void raise(char *number, int64_t size, uint32_t offset) {
    uint32_t bits = 0;
    float value, by;
    memcpy((char *)&bits + 4 - size, number, size);
    memcpy(&value, &bits, 4);
    memcpy(&by, &offset, 4);
    value += by;
    memcpy(&bits, &value, 4);
    if (size == 2) bits += 0x7fff + (bits >> 16 & 1);
    memcpy(number, (char *)&bits + 4 - size, size);
}

// What `abi::Exchange` asks for is not done: no test runs it.
int atomc_exchange_parameters = 13;
void atomc_exchange(uint64_t *p, unsigned group, unsigned threads) {}

// What `abi::Pack` asks for, of numbers that keep their type. One group does it all.
int atomc_pack_parameters = 15;
void atomc_pack(uint64_t *p, unsigned group, unsigned threads) {
    static const char zero[4];
    int64_t size = p[3] ? 2 : 4, unit = 16 / size, width = p[12];
    if (group) return;
    for (int64_t r = 0; r < (int64_t)p[8]; r++)
        for (int64_t c = 0; c < (int64_t)p[9]; c++) {
            int64_t row = p[10] + r, col = p[11] + c;
            char *to = (char *)p[1] + row / width * p[13] + ((col / unit * width + row % width) * unit + col % unit) * size;
            int exists = r < (int64_t)p[6] && c < (int64_t)p[7];
            const char *from = exists ? (char *)p[0] + (r * (int64_t)p[4] + c * (int64_t)p[5]) * size : zero;
            char number[4];
            memcpy(number, from, size);
            if (exists && p[14]) raise(number, size, p[14]);
            if (!p[2]) memcpy(to, number, size);
            else if (memcmp(to, number, size)) *(uint32_t *)p[2] = 1;
        }
}
