// libplugin.so: the library that dlopened loads.
static __attribute__((noinline)) unsigned long plugin_work(unsigned long state) {
    for (int i = 0; i < 20000; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        __asm__ volatile("" : "+r"(state));
        state ^= state << 17;
    }
    return state;
}

unsigned long plugin_entry(unsigned long state) {
    state = plugin_work(state | 1);
    // Keeps the call above from becoming a jump.
    __asm__ volatile("" : "+r"(state));
    return state;
}
