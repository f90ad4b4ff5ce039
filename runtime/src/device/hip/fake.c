// A stand-in for libamdhip64.so, for tests: "device code" is a shared object of the host that it loads and runs, and every
// call is written down. Memory of the device can be touched only while a copy or a kernel runs, so that a host that follows an
// address of the device is caught. Streams run at once; what is captured runs when it is replayed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA (64 << 20)
#define PARAMETERS 16
typedef int error;
typedef void (*kernel_code)(uint64_t *parameters, unsigned group, unsigned threads);
typedef struct { kernel_code code; int count; char name[32]; } kernel;
typedef struct { kernel *kernel; unsigned groups, threads; uint64_t parameters[PARAMETERS]; } launch;

static char log_text[1 << 20];
static size_t log_end;
static char *arena;
static size_t arena_end;
static launch captured[256];
static int capturing, captured_count;
static int devices = 2;

static void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_end += vsnprintf(log_text + log_end, sizeof log_text - log_end, format, args);
    log_end += snprintf(log_text + log_end, sizeof log_text - log_end, "\n");
    va_end(args);
}

// What was written down since the last time.
const char *fake_take_log(void) {
    static char taken[sizeof log_text];
    memcpy(taken, log_text, log_end);
    taken[log_end] = 0;
    log_end = 0;
    return taken;
}

void fake_devices(int count) { devices = count; }

static void reach(int can) { mprotect(arena, ARENA, can ? PROT_READ | PROT_WRITE : PROT_NONE); }

error hipInit(unsigned flags) { note("init"); return devices < 0 ? 100 : 0; }
error hipGetDeviceCount(int *count) { *count = devices; return 0; }
error hipSetDevice(int device) { return device < devices ? 0 : 101; }
const char *hipGetErrorName(error e) { return e == 100 ? "hipErrorNoDevice" : e == 500 ? "hipErrorNotFound" : "hipErrorFake"; }
const char *hipGetErrorString(error e) { return e == 100 ? "no ROCm-capable device is detected" : "named symbol not found"; }

// The fields that matter lie where the binding says: their offsets come with the compiler's command line.
error hipGetDevicePropertiesR0600(char *properties, int device) {
    strcpy(properties, "AMD Instinct Fake");
    strcpy(properties + ARCH_NAME, device == 0 ? "gfx942:sramecc+:xnack-" : "gfx1100");
    *(size_t *)(properties + MEMORY) = ARENA;
    return 0;
}

error hipStreamCreateWithFlags(void **stream, unsigned flags) { note("stream"); *stream = (void *)0x51; return 0; }
error hipStreamDestroy(void *stream) { note("destroy stream"); return 0; }
error hipStreamSynchronize(void *stream) { note("synchronise"); return 0; }
error hipEventCreateWithFlags(void **event, unsigned flags) { *event = (void *)0xe1; return 0; }
error hipEventRecord(void *event, void *stream) { note("record"); return 0; }
error hipEventSynchronize(void *event) { note("wait"); return 0; }
error hipEventElapsedTime(float *ms, void *from, void *to) { *ms = 0.25f; return 0; }
error hipEventDestroy(void *event) { return 0; }

error hipMalloc(void **start, size_t bytes) {
    if (!arena) arena = mmap(0, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes > ARENA - arena_end) return 2;
    *start = arena + arena_end;
    arena_end = (arena_end + bytes + 255) / 256 * 256;
    // Not zero, as on a device.
    reach(1);
    memset(*start, 0xa5, bytes);
    reach(0);
    return 0;
}
error hipFree(void *start) { note("free"); return 0; }
error hipHostMalloc(void **start, size_t bytes, unsigned flags) { *start = aligned_alloc(64, (bytes + 63) / 64 * 64); return 0; }
error hipHostFree(void *start) { free(start); return 0; }
error hipMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    reach(1);
    memset(to, value, bytes);
    reach(0);
    return 0;
}
error hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, void *stream) {
    note("copy in");
    reach(1);
    memcpy(to, from, bytes);
    reach(0);
    return 0;
}
error hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, void *stream) {
    note("copy out");
    reach(1);
    memcpy(to, from, bytes);
    reach(0);
    return 0;
}

// The image's length follows from its headers, as on a device.
error hipModuleLoadData(void **module, const void *image) {
    const Elf64_Ehdr *header = image;
    size_t bytes = header->e_shoff + header->e_shnum * header->e_shentsize;
    int file = memfd_create("device", 0);
    char path[64];
    if (write(file, image, bytes) != (ssize_t)bytes) return 1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    note("load");
    return *module ? 0 : 1;
}
error hipModuleUnload(void *module) { note("unload"); return dlclose(module); }
error hipModuleGetFunction(void **function, void *module, const char *name) {
    char count[64];
    kernel *k = calloc(1, sizeof *k);
    snprintf(count, sizeof count, "%s_parameters", name);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->code = (kernel_code)dlsym(module, name);
    int *parameters = dlsym(module, count);
    if (!k->code || !parameters) return 500;
    k->count = *parameters;
    *function = k;
    return 0;
}

static void run(const launch *l) {
    uint64_t parameters[PARAMETERS];
    memcpy(parameters, l->parameters, sizeof parameters);
    reach(1);
    for (unsigned group = 0; group < l->groups; group++) l->kernel->code(parameters, group, l->threads);
    reach(0);
}

error hipModuleLaunchKernel(kernel *k, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void *stream, void **parameters, void **extra) {
    launch l = {k, x, bx, {0}};
    for (int i = 0; i < k->count; i++) l.parameters[i] = *(uint64_t *)parameters[i];
    note("%s %s %ux%u", capturing ? "capture" : "launch", k->name, x, bx);
    if (capturing) captured[captured_count++] = l;
    else run(&l);
    return 0;
}

typedef struct { int count; launch launches[]; } graph;
error hipStreamBeginCapture(void *stream, unsigned mode) {
    note("begin capture");
    capturing = 1;
    captured_count = 0;
    return 0;
}
error hipStreamEndCapture(void *stream, graph **made) {
    note("end capture");
    capturing = 0;
    *made = malloc(sizeof(graph) + captured_count * sizeof(launch));
    (*made)->count = captured_count;
    memcpy((*made)->launches, captured, captured_count * sizeof(launch));
    return 0;
}
error hipGraphInstantiate(graph **exec, graph *from, void *node, char *text, size_t bytes) {
    size_t size = sizeof(graph) + from->count * sizeof(launch);
    *exec = malloc(size);
    memcpy(*exec, from, size);
    note("instantiate");
    return 0;
}
error hipGraphDestroy(graph *g) { free(g); return 0; }
error hipGraphExecDestroy(graph *g) { free(g); return 0; }
error hipGraphLaunch(graph *g, void *stream) {
    note("replay of %d", g->count);
    for (int i = 0; i < g->count; i++) run(&g->launches[i]);
    return 0;
}
