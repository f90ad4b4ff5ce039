// A stand-in for a GPU's driver, for tests: HIP's, or with -DCUDA CUDA's, which is the same but for
// names. "Device code" is a shared object of the host that it loads and runs, and every call is
// written down. Memory of the device can be touched only while a copy or a kernel runs, so that a
// host that follows an address of the device is caught. Streams run at once; what is captured runs
// when it is replayed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef CUDA
#define NAME(hip, cuda) cuda
#else
#define NAME(hip, cuda) hip
#endif
// Memory that devices say they have, and what there is.
#define ARENA (64 << 20)
#define ROOM (256 << 20)
#define UNITS 16
#define PARAMETERS 16
typedef int error;
typedef void (*kernel_code)(uint64_t *parameters, unsigned group, unsigned threads);
typedef struct { kernel_code code; int count; unsigned shared; char name[32]; } kernel;
typedef struct { kernel *kernel; unsigned groups, threads; uint64_t parameters[PARAMETERS]; } launch;

// Modules load on several threads: the log is written and taken under this lock.
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
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
    pthread_mutex_lock(&log_lock);
    log_end += vsnprintf(log_text + log_end, sizeof log_text - log_end, format, args);
    log_end += snprintf(log_text + log_end, sizeof log_text - log_end, "\n");
    pthread_mutex_unlock(&log_lock);
    va_end(args);
}

// What was written down since the last time.
const char *fake_take_log(void) {
    static char taken[sizeof log_text];
    pthread_mutex_lock(&log_lock);
    memcpy(taken, log_text, log_end);
    taken[log_end] = 0;
    log_end = 0;
    pthread_mutex_unlock(&log_lock);
    return taken;
}

// The call of a name that fails, after so many that do not, and with which code; and whether all
// fail from then on, as where a device is lost.
static char failing[32];
static int fail_after, fail_code, fail_always;
void fake_fail(const char *call, int after, int code, int always) {
    snprintf(failing, sizeof failing, "%s", call);
    fail_after = after;
    fail_code = code;
    fail_always = always;
}
static error trouble(const char *call) {
    int ends = fail_always == 2;
    if (!ends && (strcmp(call, failing) || fail_after-- > 0)) return 0;
    if (fail_always) fail_always = 2;
    failing[0] = 0;
    return fail_code;
}
// At the beginning of a call that may be told to fail.
#define MAY_FAIL(call) do { error failed_ = trouble(call); if (failed_) return failed_; } while (0)

void fake_devices(int count) { devices = count; }

// Whether devices reach each other's memory, and which peers were made known to a device.
static int peers, reached[4];
void fake_peers(int can) { peers = can; }
static error enable_peer(int peer) {
    if (!peers || peer < 0 || peer >= devices) return 217;
    if (reached[peer]) return 704;
    reached[peer] = 1;
    note("reach %d", peer);
    return 0;
}

static void reach(int can) { mprotect(arena, ROOM, can ? PROT_READ | PROT_WRITE : PROT_NONE); }

error NAME(hipInit, cuInit)(unsigned flags) { note("init"); return devices < 0 ? 100 : 0; }
error NAME(hipGetDeviceCount, cuDeviceGetCount)(int *count) { *count = devices; return 0; }
error NAME(hipDrvGetErrorName, cuGetErrorName)(error e, const char **text) {
    *text = e == 100 ? NAME("hipErrorNoDevice", "CUDA_ERROR_NO_DEVICE")
          : e == 2 ? NAME("hipErrorOutOfMemory", "CUDA_ERROR_OUT_OF_MEMORY")
          : e == 719 ? NAME("hipErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED")
          : e == 500 ? NAME("hipErrorNotFound", "CUDA_ERROR_NOT_FOUND") : "ErrorFake";
    return 0;
}
error NAME(hipDrvGetErrorString, cuGetErrorString)(error e, const char **text) {
    *text = e == 100 ? "no device is detected" : e == 2 ? "out of memory" : e == 719 ? "the kernel failed" : "named symbol not found";
    return 0;
}

#ifdef CUDA
error cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < devices ? 0 : 101; }
error cuDeviceGetName(char *name, int bytes, int device) { snprintf(name, bytes, "NVIDIA Fake"); return 0; }
// 75: major, 76: minor, 16: multiprocessors. The second device is a 10.3.
error cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? (device ? 10 : 9) : which == 76 ? (device ? 3 : 0) : which == 16 ? UNITS : -1;
    return 0;
}
error cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = ARENA; return 0; }
error cuDevicePrimaryCtxRetain(void **context, int device) { note("retain"); *context = (void *)0xc0; return 0; }
error cuDevicePrimaryCtxRelease_v2(int device) { note("release"); return 0; }
error cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = peers; return 0; }
error cuCtxEnablePeerAccess(void *context, unsigned flags) { return context == (void *)0xc0 ? enable_peer(1) : 201; }
error cuCtxSetCurrent(void *context) { MAY_FAIL("enter"); return context == (void *)0xc0 ? 0 : 201; }
#else
error hipDeviceCanAccessPeer(int *can, int device, int peer) { *can = peers; return 0; }
error hipDeviceEnablePeerAccess(int peer, unsigned flags) { return enable_peer(peer); }
static error allocate(void **start, size_t bytes);
error hipExtMallocWithFlags(void **start, size_t bytes, unsigned flags) {
    note("uncached");
    return flags == 3 ? allocate(start, bytes) : 1;
}
error hipSetDevice(int device) { MAY_FAIL("enter"); return device < devices ? 0 : 101; }
// The fields that matter lie where the binding says: their offsets come with the compiler's command
// line.
error hipGetDevicePropertiesR0600(char *properties, int device) {
    strcpy(properties, "AMD Instinct Fake");
    strcpy(properties + ARCH_NAME, device == 0 ? "gfx942:sramecc+:xnack-" : "gfx1100");
    *(size_t *)(properties + MEMORY) = ARENA;
    *(int *)(properties + AT_UNITS) = UNITS;
    return 0;
}
#endif

error NAME(hipStreamCreateWithFlags, cuStreamCreate)(void **stream, unsigned flags) { note("stream"); *stream = (void *)0x51; return 0; }
error NAME(hipStreamDestroy, cuStreamDestroy_v2)(void *stream) { note("destroy stream"); return 0; }
error NAME(hipStreamSynchronize, cuStreamSynchronize)(void *stream) { MAY_FAIL("synchronise"); note("synchronise"); return 0; }
error NAME(hipEventCreateWithFlags, cuEventCreate)(void **event, unsigned flags) { *event = (void *)0xe1; return 0; }
error NAME(hipEventRecord, cuEventRecord)(void *event, void *stream) { note("record"); return 0; }
error NAME(hipEventSynchronize, cuEventSynchronize)(void *event) { MAY_FAIL("wait"); note("wait"); return 0; }
error NAME(hipEventElapsedTime, cuEventElapsedTime)(float *ms, void *from, void *to) { *ms = 0.25f; return 0; }
error NAME(hipEventDestroy, cuEventDestroy_v2)(void *event) { return 0; }

static error allocate(void **start, size_t bytes) {
    if (!arena) arena = mmap(0, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes > ROOM - arena_end) return 2;
    *start = arena + arena_end;
    arena_end = (arena_end + bytes + 255) / 256 * 256;
    // Not zero, as on a device.
    reach(1);
    memset(*start, 0xa5, bytes);
    reach(0);
    return 0;
}
error NAME(hipMalloc, cuMemAlloc_v2)(void **start, size_t bytes) {
    MAY_FAIL("allocate");
    return allocate(start, bytes);
}
// Memory that a stream gave is given back once; a kernel that writes it later would write over
// 0x5a.
static struct { void *start; size_t bytes; } lent[256];
error NAME(hipMallocAsync, cuMemAllocAsync)(void **start, size_t bytes, void *stream) {
    error failed = NAME(hipMalloc, cuMemAlloc_v2)(start, bytes);
    for (int i = 0; !failed && i < 256; i++)
        if (!lent[i].start) {
            note("borrow on %lx", (long)stream);
            lent[i].start = *start;
            lent[i].bytes = bytes;
            return 0;
        }
    return failed ? failed : 2;
}
error NAME(hipFreeAsync, cuMemFreeAsync)(void *start, void *stream) {
    note("return on %lx", (long)stream);
    for (int i = 0; i < 256; i++)
        if (lent[i].start == start) {
            reach(1);
            memset(start, 0x5a, lent[i].bytes);
            reach(0);
            lent[i].start = 0;
            return 0;
        }
    return 1;
}
error NAME(hipFree, cuMemFree_v2)(void *start) { note("free"); return 0; }
error NAME(hipHostMalloc, cuMemHostAlloc)(void **start, size_t bytes, unsigned flags) { *start = aligned_alloc(64, (bytes + 63) / 64 * 64); return 0; }
error NAME(hipHostFree, cuMemFreeHost)(void *start) { free(start); return 0; }
error NAME(hipMemsetAsync, cuMemsetD8Async)(void *to, NAME(int, unsigned char) value, size_t bytes, void *stream) {
    reach(1);
    memset(to, value, bytes);
    reach(0);
    return 0;
}
error NAME(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)(void *to, const void *from, size_t bytes, void *stream) {
    MAY_FAIL("copy in");
    note("copy in");
    reach(1);
    memcpy(to, from, bytes);
    reach(0);
    return 0;
}
error NAME(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)(void *to, const void *from, size_t bytes, void *stream) {
    note("copy within");
    reach(1);
    memcpy(to, from, bytes);
    reach(0);
    return 0;
}
error NAME(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)(void *to, const void *from, size_t bytes, void *stream) {
    MAY_FAIL("copy out");
    note("copy out");
    reach(1);
    memcpy(to, from, bytes);
    reach(0);
    return 0;
}

// The image's length follows from its headers, as on a device. Text for CUDA is the path of an
// object.
error NAME(hipModuleLoadData, cuModuleLoadData)(void **module, const void *image) {
    MAY_FAIL("load");
    if (memcmp(image, "\177ELF", 4)) {
        *module = NAME(0, dlopen(image, RTLD_NOW | RTLD_LOCAL));
        note("load text");
        return *module ? 0 : 1;
    }
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
error NAME(hipModuleUnload, cuModuleUnload)(void *module) { note("unload"); return dlclose(module); }
error NAME(hipModuleGetFunction, cuModuleGetFunction)(void **function, void *module, const char *name) {
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

static error start(kernel *k, unsigned groups, unsigned threads, unsigned shared, int overlaps, void **parameters) {
    launch l = {k, groups, threads, {0}};
    MAY_FAIL("launch");
    if (shared > 48 << 10 && shared > k->shared) return 1;
    for (int i = 0; i < k->count; i++) l.parameters[i] = *(uint64_t *)parameters[i];
    note("%s %s %ux%u%s%s", capturing ? "capture" : "launch", k->name, groups, threads, shared ? " sharing" : "",
         overlaps ? " early" : "");
    if (capturing) captured[captured_count++] = l;
    else run(&l);
    return 0;
}
#ifdef CUDA
// 8: the most dynamic shared memory.
error cuFuncSetAttribute(kernel *k, int which, int value) { if (which == 8) k->shared = value; return 0; }
typedef struct { int id; char pad[4]; int value; char rest[60]; } attribute;
typedef struct { unsigned x, y, z, bx, by, bz, shared; void *stream; attribute *attributes; unsigned count; } config;
error cuLaunchKernelEx(const config *c, kernel *k, void **parameters, void **extra) {
    // 6: programmatic stream serialization.
    int overlaps = c->count == 1 && c->attributes[0].id == 6 && c->attributes[0].value == 1;
    return start(k, c->x, c->bx, c->shared, overlaps, parameters);
}
#else
error hipModuleLaunchKernel(kernel *k, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void *stream, void **parameters, void **extra) {
    return start(k, x, bx, shared, 0, parameters);
}
#endif

typedef struct { int count; launch launches[]; } graph;
error NAME(hipStreamBeginCapture, cuStreamBeginCapture_v2)(void *stream, unsigned mode) {
    note("begin capture");
    capturing = 1;
    captured_count = 0;
    return 0;
}
error NAME(hipStreamEndCapture, cuStreamEndCapture)(void *stream, graph **made) {
    note("end capture");
    capturing = 0;
    *made = malloc(sizeof(graph) + captured_count * sizeof(launch));
    (*made)->count = captured_count;
    memcpy((*made)->launches, captured, captured_count * sizeof(launch));
    return 0;
}
#ifdef CUDA
error cuGraphInstantiateWithFlags(graph **exec, graph *from, unsigned long long flags) {
#else
error hipGraphInstantiate(graph **exec, graph *from, void *node, char *text, size_t bytes) {
#endif
    MAY_FAIL("instantiate");
    size_t size = sizeof(graph) + from->count * sizeof(launch);
    *exec = malloc(size);
    memcpy(*exec, from, size);
    note("instantiate");
    return 0;
}
error NAME(hipGraphDestroy, cuGraphDestroy)(graph *g) { free(g); return 0; }
error NAME(hipGraphExecDestroy, cuGraphExecDestroy)(graph *g) { free(g); return 0; }
error NAME(hipGraphLaunch, cuGraphLaunch)(graph *g, void *stream) {
    MAY_FAIL("replay");
    note("replay of %d", g->count);
    for (int i = 0; i < g->count; i++) run(&g->launches[i]);
    return 0;
}
