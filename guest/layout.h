/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that boot.S, guest.ld and the C files share. */
#pragma once

#define GUEST_BASE   0x200000 /* where the image is linked and loaded */
#define TRAMPOLINE   0x8000   /* real-mode start of the other vCPUs, one page */
#define MAX_CPUS     64
#define TSS_SIZE     1024
#define TSS_IO_MAP   104
#define TSS_LIMIT    (TSS_IO_MAP + 0x1000 / 8) /* I/O ports below 0x1000, and the closing byte */
#define KERNEL_STACK 1024
#define USER_STACK   16384

/* Selectors. 0x33 and 0x2b are those a PVM host wants for code it runs natively. */
#define SEL_CODE64    0x08
#define SEL_DATA      0x10
#define SEL_CODE32    0x18
#define SEL_USER_DATA 0x2b
#define SEL_USER_CODE 0x33
#define SEL_TSS       0x40

/* What CPL 3 asks of CPL 0: `ud2` with the magic in r11d and the number in eax. */
#define SERVICE_MAGIC 0x60d717
#define SERVICE_CR3   1 /* rdi: the new CR3 */
#define SERVICE_CPUID 2 /* edi, esi: leaf, subleaf; returns eax ebx ecx edx */
#define SERVICE_PARK  3 /* halts this vCPU for ever */
#define SERVICE_RESET 4 /* empties the IDT: the next fault is a triple fault */
