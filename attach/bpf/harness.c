// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Runs copy_memory(), copy_frames() and note_task() of record.c as an ordinary program, for a test: which parts of a guest's
// memory do they copy?
//
// Without an argument: prints the bucket of each duration on standard input, of 8 bytes each.
//
// With the argument `-`: prints the weight of an exit at each time on standard input, of 8 bytes each.
//
// Else the first argument is a file with the guest's memory, from physical address 0 on. Standard input has a struct target,
// the first part of a struct record, with registers, and a struct plan, for each case. Standard output gets the records;
// with a second argument, notes of an exit instead. With the second argument `registers`, the file has the kernel's memory
// of a vCPU, and standard input a struct options; standard output gets a record with the registers of the vCPU.

#include "record.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Address in the "VMM" of the guest's memory.
#define HOST 0x100000000000ull
// Bytes of the first part of a record.
#define STATE __builtin_offsetof(struct record, word)

static u8 *memory;
static u64 memory_bytes;
static struct target the_target;
static struct record the_record;
static struct notes the_notes;
static struct note the_note;
static struct plan the_plan;

static void *lookup(void *map, const void *key)
{
	// All places have the same plan.
	if (map == &plans)
		return &the_plan;
	if (*(const u32 *)key != 0)
		return 0;
	return map == &targets ? (void *)&the_target : map == &records ? (void *)&the_record :
	       map == &notes   ? (void *)&the_notes  : map == &note_rows ? (void *)&the_note : 0;
}

static long read_user(void *into, u32 bytes, u64 from)
{
	u64 at = from - HOST;
	if (at >= memory_bytes || memory_bytes - at < bytes)
		return -1;
	memcpy(into, memory + at, bytes);
	return 0;
}

static long read_kernel(void *into, u32 bytes, u64 from)
{
	memcpy(into, (void *)from, bytes);
	return 0;
}

static u32 random_u32(void)
{
	static u64 state = 1;
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return state >> 32;
}

// Copies the registers of a vCPU in the file.
static int print_registers(void)
{
	// The programs only read their options.
	u64 page = (u64)&options & ~(PAGE - 1);
	if (mprotect((void *)page, 2 * PAGE, PROT_READ | PROT_WRITE))
		return 1;
	if (fread((void *)&options, sizeof(options), 1, stdin) != 1)
		return 1;
	probe_read_kernel = read_user;
	the_target.vcpu = HOST;
	copy_registers(&the_target, &the_record, 1);
	return fwrite(&the_record, sizeof(the_record), 1, stdout) != 1;
}

int main(int count, char **arguments)
{
	u64 ns;
	if (count == 1) {
		while (fread(&ns, sizeof(ns), 1, stdin) == 1)
			printf("%u\n", bucket(ns));
		return 0;
	}
	if (count == 2 && !strcmp(arguments[1], "-")) {
		get_prandom_u32 = random_u32;
		while (fread(&ns, sizeof(ns), 1, stdin) == 1)
			printf("%u\n", drawn_weight(&the_notes, ns));
		return 0;
	}
	FILE *file = count == 2 || count == 3 ? fopen(arguments[1], "rb") : 0;
	if (!file || fseek(file, 0, SEEK_END))
		return 1;
	memory_bytes = ftell(file);
	memory = malloc(memory_bytes);
	rewind(file);
	if (!memory || fread(memory, 1, memory_bytes, file) != memory_bytes)
		return 1;
	if (count == 3 && !strcmp(arguments[2], "registers"))
		return print_registers();
	map_lookup = lookup;
	probe_read_user = read_user;
	probe_read_kernel = read_kernel;
	while (fread(&the_target, sizeof(the_target), 1, stdin) == 1) {
		memset(&the_record, 0, sizeof(the_record));
		if (fread(&the_record, STATE, 1, stdin) != 1 || fread(&the_plan, sizeof(the_plan), 1, stdin) != 1)
			return 1;
		copy_memory(0);
		copy_frames(0);
		if (count == 3) {
			memset(&the_note, 0, sizeof(the_note));
			note_task(0);
			if (fwrite(&the_note, sizeof(the_note), 1, stdout) != 1)
				return 1;
		} else if (fwrite(&the_record, sizeof(the_record), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
