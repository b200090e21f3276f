// dlopened: works in a library that it loads while it runs.
//
//   main -> plugin_entry -> plugin_work        the last two in libplugin.so
//
// Use: dlopened [SECONDS]
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    double deadline = seconds(CLOCK_MONOTONIC) + (argc > 1 ? atof(argv[1]) : 10.0);
    void *library = dlopen("/usr/lib/vprof/libplugin.so", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    unsigned long (*entry)(unsigned long) = (unsigned long (*)(unsigned long))dlsym(library, "plugin_entry");
    if (entry == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    unsigned long state = 1;
    while (seconds(CLOCK_MONOTONIC) < deadline) {
        state = entry(state);
    }
    printf("plugin_work used %.6f s\n", seconds(CLOCK_THREAD_CPUTIME_ID));
    return state == 0;
}
