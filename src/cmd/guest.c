/* SPDX-License-Identifier: Apache-2.0 */
/* godwit guest: hands out the built-in guest. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/error.h"
#include "base/io.h"
#include "base/log.h"
#include "cmd/command.h"
#include "guest/guest_elf.h"

static const char help[] =
	"Usage: godwit guest --write FILE\n"
	"\n"
	"Writes the built-in guest as a PVH ELF. Godwit runs the same one with\n"
	"\"godwit run --guest ARGUMENTS\"; QEMU runs it with\n"
	"\n"
	"  qemu-system-x86_64 -accel kvm -M microvm -cpu host,-arch-capabilities -m 1G -smp 2 \\\n"
	"      -nodefaults -no-reboot -display none -serial stdio -kernel FILE \\\n"
	"      -append stress,hot=64M,fill=512M,cpus=2\n"
	"\n"
	"  --write FILE  where to write it; \"-\" is the standard output\n"
	"  --help        this text\n"
	"\n"
	"ARGUMENTS: a mode, then options, separated by commas\n"
	"  stress        sweeps over its hot set, checking and rewriting every word\n"
	"  idle          spins, measures, and checks little (hot=0)\n"
	"  hot=SIZE      memory rewritten in a loop, over all vCPUs (stress 16M)\n"
	"  fill=SIZE     memory written once, then read back and checked slowly (16M)\n"
	"  pace=USECS    pause between two sweeps (0)\n"
	"  check=USECS   one filled page a vCPU is checked per so much time (stress 50, idle "
	"1000;\n"
	"                0: never)\n"
	"  interval=MS   time between two report lines (1000)\n"
	"  cpus=N        vCPUs to run on, 1 to 64 (1)\n"
	"  seed=N        the words' values follow from it (1)\n"
	"  top=1         takes memory from the highest address down, not from the lowest up (0)\n"
	"  damage=N      flips a bit in N words after the fill: N wrong words must be reported "
	"(0)\n"
	"Sizes take K, M, G, T.\n"
	"\n"
	"Lines on the serial port, name=value, further names may follow:\n"
	"  godwit-guest boot version= mode= tsc-khz= tsc-from= memory-mb= free-mb= cpus=\n"
	"  godwit-guest ready cpus= hot= fill= fill-us= boot-us= tsc=\n"
	"  godwit-guest interval= sweeps= longest-us= move-us= moves= wrong= checked-mb= work= "
	"ms=\n"
	"  godwit-guest move moves= pause-us= cpu= start= length=\n"
	"  godwit-guest wrong address= expected= found=\n"
	"  godwit-guest error|warning TEXT\n"
	"  godwit-guest exception cpu= vector= error= rip= cr2= TEXT\n"
	"\n"
	"Commands, single bytes sent to the serial port; digits in front are an argument N:\n"
	"  c  checks all memory       h  prints the work of the last N (4096) milliseconds\n"
	"  g  prints the last N (64) gaps over 100 us       t  the longest of the last interval\n"
	"  q  powers off              r  resets\n"
	"\n"
	"docs/guest.md says what each name and line means.\n";

static int guest_write(const char *path, struct error **err)
{
	size_t length = (size_t)(guest_elf_end - guest_elf_start);
	cleanup_close int fd = -1;

	if (!length)
		return error_set(err, -ENOTSUP,
				 "this build has no built-in guest (x86-64 has one)");
	if (!strcmp(path, "-"))
		return io_write_full(STDOUT_FILENO, guest_elf_start, length, IO_NO_DEADLINE, err);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return error_set_errno(err, -errno, "cannot write the guest to %s", path);
	if (io_write_full(fd, guest_elf_start, length, IO_NO_DEADLINE, err) < 0)
		return error_prefix(err, "cannot write the guest to %s", path);
	if (close(steal_fd(&fd)) < 0)
		return error_set_errno(err, -errno, "cannot write the guest to %s", path);
	return 0;
}

int cmd_guest(int argc, char **argv)
{
	static const struct option options[] = {
		{"write", required_argument, NULL, 'w'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	cleanup_error struct error *err = NULL;
	const char *path = NULL;
	int option;

	optind = 0; /* a fresh scan: the program may have used getopt before */
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'w':
			path = optarg;
			break;
		case 'h':
			fputs(help, stdout);
			return fflush(stdout) ? 1 : 0;
		default:
			fputs("Try \"godwit guest --help\".\n", stderr);
			return 2;
		}
	}
	if (!path || optind < argc) {
		fputs("Usage: godwit guest --write FILE (see \"godwit guest --help\")\n", stderr);
		return 2;
	}
	if (guest_write(path, &err) < 0) {
		log_error("%s", error_text(err));
		return 1;
	}
	return 0;
}
