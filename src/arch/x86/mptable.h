/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table that tells a kernel without ACPI which processors and interrupt controllers there are
 * (Intel MultiProcessor Specification 1.4, chapter 4).
 */
#pragma once

#include "base/error.h"
#include "memory/ram.h"

/* The page in the BIOS area, which the memory map reserves, where kernels look for it. */
#define MPTABLE_START 0xf0000u
#define MPTABLE_END   0xf1000u

/* Writes the table for `cpus` processors (1 to 64), whose APIC ids are 0 and up. */
int mptable_write(struct ram *ram, unsigned int cpus, struct error **err);
