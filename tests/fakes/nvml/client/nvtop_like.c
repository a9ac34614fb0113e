/*
 * Calls the library the way nvtop does: dlopen by soname, the newest version of every symbol that is there, process
 * lists by growing an array for as long as the answer is INSUFFICIENT_SIZE, no handling of missing ones.
 * Prints a line per GPU (index, name, PCI address, busy, memory used) and per process (GPU, kind, pid, bytes).
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "../nvml_abi.h"

typedef nvmlReturn_t process_list(nvmlDevice_t, unsigned int *, void *);

static void *library;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

static void check(nvmlReturn_t result, const char *what)
{
    const char *(*text)(nvmlReturn_t) = symbol("nvmlErrorString");
    if (result != NVML_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, text(result));
        exit(1);
    }
}

/* size: of one entry in this version of the function. Returns an array to free. */
static char *grow_until_it_fits(process_list *list, nvmlDevice_t device, size_t size, unsigned int *count)
{
    unsigned int room = 0;
    char *entries = NULL;
    for (;;) {
        *count = room;
        const nvmlReturn_t result = list(device, count, room ? entries : NULL);
        if (result != NVML_ERROR_INSUFFICIENT_SIZE) {
            check(result, "process list");
            return entries;
        }
        room = room * 2 + 1;
        entries = realloc(entries, room * size);
    }
}

static void print_processes(unsigned int gpu, nvmlDevice_t device, const char *kind, const char *function, size_t size)
{
    unsigned int count;
    char *entries = grow_until_it_fits((process_list *)symbol(function), device, size, &count);
    for (unsigned int i = 0; i < count; i++) {
        const nvmlProcessInfo_v1_t *process = (const void *)(entries + i * size);
        printf("process %u %s %u %llu\n", gpu, kind, process->pid, process->usedGpuMemory);
    }
    free(entries);
}

static void print_gpu(unsigned int gpu)
{
    nvmlReturn_t (*by_index)(unsigned int, nvmlDevice_t *) = symbol("nvmlDeviceGetHandleByIndex_v2");
    nvmlReturn_t (*name_of)(nvmlDevice_t, char *, unsigned int) = symbol("nvmlDeviceGetName");
    nvmlReturn_t (*pci_of)(nvmlDevice_t, nvmlPciInfo_t *) = symbol("nvmlDeviceGetPciInfo_v3");
    nvmlReturn_t (*busy_of)(nvmlDevice_t, nvmlUtilization_t *) = symbol("nvmlDeviceGetUtilizationRates");
    nvmlReturn_t (*memory_of)(nvmlDevice_t, nvmlMemory_t *) = symbol("nvmlDeviceGetMemoryInfo");
    nvmlDevice_t device;
    char name[96];
    nvmlPciInfo_t pci;
    nvmlUtilization_t busy;
    nvmlMemory_t memory;
    check(by_index(gpu, &device), "handle");
    check(name_of(device, name, sizeof name), "name");
    check(pci_of(device, &pci), "pci");
    check(busy_of(device, &busy), "utilization");
    check(memory_of(device, &memory), "memory");
    printf("gpu %u %s %s %u %llu\n", gpu, pci.busIdLegacy, name, busy.gpu, memory.used);
    print_processes(gpu, device, "compute", "nvmlDeviceGetComputeRunningProcesses_v3", sizeof(nvmlProcessInfo_t));
    print_processes(gpu, device, "graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3", sizeof(nvmlProcessInfo_t));
    print_processes(gpu, device, "old", "nvmlDeviceGetComputeRunningProcesses", sizeof(nvmlProcessInfo_v1_t));
}

int main(void)
{
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    nvmlReturn_t (*init)(void) = symbol("nvmlInit_v2");
    nvmlReturn_t (*shutdown)(void) = symbol("nvmlShutdown");
    nvmlReturn_t (*count_of)(unsigned int *) = symbol("nvmlDeviceGetCount_v2");
    unsigned int count;
    check(init(), "init");
    check(count_of(&count), "count");
    for (unsigned int gpu = 0; gpu < count; gpu++)
        print_gpu(gpu);
    check(shutdown(), "shutdown");
    return 0;
}
