// Phases of known shares of the CPU: phases-go SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock.
package main

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

//go:noinline
func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

//go:noinline
func sieve(n int) int {
	composite := make([]bool, n+1)
	count := 0
	for candidate := 2; candidate <= n; candidate++ {
		if composite[candidate] {
			continue
		}
		count++
		for multiple := 2 * candidate; multiple <= n; multiple += candidate {
			composite[multiple] = true
		}
	}
	return count
}

var item = regexp.MustCompile(`item \d+`)

//go:noinline
func text(n int) int {
	var builder strings.Builder
	for i := 0; i < n; i++ {
		fmt.Fprintf(&builder, "item %d;", i)
	}
	return len(item.FindAllString(builder.String(), -1))
}

func check(right bool) {
	if !right {
		panic("a wrong result")
	}
}

func runFib()   { check(fib(16) == 987) }
func runSieve() { check(sieve(5000) == 669) }
func runText()  { check(text(50) == 50) }

// cpuSeconds reads a CPU clock: 2 is that of the process, 3 that of the thread (clock_gettime(2)).
func cpuSeconds(clock uintptr) float64 {
	var time syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&time)), 0)
	check(failed == 0)
	return float64(time.Nano()) / 1e9
}

type phase struct {
	name   string
	run    func()
	weight float64
	used   float64
}

func main() {
	runtime.LockOSThread()
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	check(err == nil)
	phases := []*phase{{"fib", runFib, 0.5, 0}, {"sieve", runSieve, 0.3, 0}, {"text", runText, 0.2, 0}}
	for done := 0.25; done < seconds+0.125; done += 0.25 {
		for _, phase := range phases {
			start := cpuSeconds(3)
			now := start
			for end := start + done*phase.weight - phase.used; now < end; now = cpuSeconds(3) {
				phase.run()
			}
			phase.used += now - start
		}
	}
	for _, phase := range phases {
		fmt.Printf("phase %s %.6f\n", phase.name, phase.used)
	}
	fmt.Printf("total %.6f\n", cpuSeconds(2))
}
